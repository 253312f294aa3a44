// Worker B: gets requests with a router's KV hints. One of them continues a conversation that A
// served: its blocks are fetched and every byte is checked. All others must end in local prefill.
// With --kill, B kills A while that fetch is under way: every request must go on without A's blocks.
// usage: worker_b RUN_DIR [--json] [--kill]   (under mpirun)
#include "account.hpp"
#include "executor.hpp"
#include "files.hpp"
#include "requests.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace {

constexpr std::int32_t block_count = 160;
constexpr auto patience = std::chrono::seconds(60);
constexpr const char *family = "native";

// Server configuration: one binding that may fetch from one endpoint, for one namespace.
std::string binding_table(const std::string &endpoint) {
  return R"({"version": 1, "bindings": [{"id": "peers", "family": "native", "addressing": "content_named",
             "actions": [{"type": "kv.fetch", "version": "1.0"}], "namespaces": [")" +
         std::string(model::name) + R"("]}], "endpoints": [{"endpoint": ")" + endpoint +
         R"(", "bindings": ["peers"]}]})";
}

const char *verdict_name(kvhints::Verdict verdict) {
  switch (verdict) {
    case kvhints::Verdict::admitted: return "admitted";
    case kvhints::Verdict::absent: return "absent";
    case kvhints::Verdict::untrusted: return "untrusted";
    case kvhints::Verdict::unknown_version: return "unknown_version";
    case kvhints::Verdict::oversized: return "oversized";
    case kvhints::Verdict::malformed: return "malformed";
  }
  return "?";
}

std::vector<std::int32_t> tokens_of(kvh_bytes_t body) {
  std::vector<std::int32_t> tokens(body.len / sizeof(std::int32_t));
  std::memcpy(tokens.data(), body.data, tokens.size() * sizeof(std::int32_t));
  return tokens;
}

kvh_communicator_params_t communicator_params(std::uint32_t ranks) {
  auto params = kvhints::sized<kvh_communicator_params_t>();
  params.tensor_size = ranks;
  params.mode = KVH_BROADCAST_DECIDED;
  return params;
}

class WorkerB {
 public:
  WorkerB(const executor::Mpi &mpi, std::string run_dir, bool is_told, bool kills)
      : mpi_(mpi),
        run_dir_(std::move(run_dir)),
        kills_(kills),
        account_(is_told && mpi.rank() == 0),
        announced_(files::read_note(run_dir_ + "/a.ready")),
        endpoint_(files::value(announced_, "endpoint")),
        rank_(mpi, block_count),
        untrusting_(executor::Rank::trusting(false)),
        table_(binding_table(endpoint_)),
        communicator_(rank_.context(), communicator_params(mpi.ranks()), MPI_Comm_c2f(MPI_COMM_WORLD)),
        transceiver_(rank_.transceiver()) {
    capabilities_.add(family, "kv.fetch", "1.0");
    transceiver_.allow(endpoint_, {"127.0.0.0/8"});
  }

  // All requests. Rank 0 leaves the exit code of the whole run in the folder: 0 only if all of it held.
  // (A process that ends non-zero makes mpirun talk about it at length.)
  void run(bool json) {
    introduce();
    serve_system_prompt();
    for (const Request &request : requests()) {
      handle(request);
    }
    finish();
    communicator_.close();
    if (mpi_.rank() == 0) {
      if (json) {
        std::printf("%s\n", result_.json().c_str());
      }
      files::write(run_dir_ + "/exit_code", result_.is_good() ? "0" : "1");
    }
  }

 private:
  void introduce() {
    result_.ranks = mpi_.ranks();
    result_.block_bytes_per_rank = rank_.block_bytes();
    result_.pids_b = mpi_.gather(std::to_string(getpid()));
    for (auto [at, end] = announced_.equal_range("pid"); at != end; ++at) {
      result_.pids_a.push_back(at->second);
    }
    account_.line("kvhints %s: two workers share KV blocks because a hint said so\n", kvh_version_string());
    account_.line("Worker A: processes %s; its state is at %s", list(result_.pids_a).c_str(), endpoint_.c_str());
    account_.line("Worker B: processes %s; its KV memory is filled with the pattern 0x%02X",
                  list(result_.pids_b).c_str(), executor::Rank::pattern);
    account_.line("Blocks:   %u tokens, %zu KiB on each of %u ranks (%u layers, %u heads of %u values)",
                  model::tokens_per_block, rank_.block_bytes() / 1024, mpi_.ranks(), model::layers,
                  model::heads_per_rank(mpi_.ranks()), model::head_size);
    account_.line("Tokens:   o200k_base (byte-pair encoding) of the texts in examples/two_workers/conversations\n");
  }

  // B has served something with the same system prompt: those blocks are not to be fetched again.
  void serve_system_prompt() {
    auto shared = files::read_tokens(run_dir_ + "/boat.tokens");
    const auto other = files::read_tokens(run_dir_ + "/oven.tokens");
    const auto difference = std::mismatch(shared.begin(), shared.end(), other.begin(), other.end()).first;
    shared.erase(difference, shared.end());
    account_.line("  B has served the system prompt before: %zu blocks are its own\n",
                  rank_.prefill(shared, 0).size());
  }

  void handle(const Request &request) {
    account_.line("  Request %llu: %s", static_cast<unsigned long long>(request.id), request.title);
    reason_.clear();
    const std::string body = files::read(run_dir_ + "/" + request.conversation + ".tokens");
    kvhints::Batch batch;
    std::optional<kvhints::Plan> plan;
    if (mpi_.rank() == 0) {
      const kvhints::Snapshot hint = admit(request);
      if (hint) {
        plan = decide(request, hint);
      }
      batch.add(request.id, body, hint, plan && plan->is_fetch() ? &*plan : nullptr);
    }
    const Stopwatch broadcast_time;
    const kvhints::Batch received = communicator_.broadcast(std::move(batch));
    account_.step("broadcast", broadcast_time.microseconds(),
                  std::to_string(body.size()) + " bytes of request and the decision, to every rank (waiting included)");

    const kvh_batch_request_t mine = received[0];
    // With an adapter the same tokens mean other KV: nothing of the plain ones matches.
    const std::vector<std::int32_t> tokens = tokens_of(mine.body);
    const std::uint64_t adapter = request.has_lora ? 1 : 0;
    const std::size_t local = rank_.held_blocks(tokens, adapter);
    const std::size_t usable = mine.plan == nullptr ? local : fetch(mine.plan, tokens, local);
    prefill_rest(tokens, adapter, usable);
    const std::string expected = kills_ ? request.fallback_without_a : request.fallback;
    if (mpi_.rank() == 0 && reason_ != expected) {
      result_.problems.push_back("request " + std::to_string(request.id) + " ended with '" + reason_ +
                                 "', expected '" + expected + "'");
    }
  }

  kvhints::Snapshot admit(const Request &request) {
    const std::string raw = files::read(run_dir_ + "/" + request.envelope + ".envelope");
    const kvhints::Context &server = request.is_trusted_here ? rank_.context() : untrusting_;
    const Stopwatch time;
    const kvhints::Admission admission = server.admit(kvhints::Ingress::http, raw);
    account_.step("admit", time.microseconds(),
                  std::to_string(raw.size()) + " raw bytes: " + verdict_name(admission.verdict));
    if (admission.verdict != kvhints::Verdict::admitted) {
      reason_ = verdict_name(admission.verdict);
    }
    return admission.snapshot;
  }

  kvhints::Plan decide(const Request &request, const kvhints::Snapshot &hint) {
    auto profile = kvhints::sized<kvh_request_profile_t>();
    profile.kind = KVH_REQUEST_CONTEXT;
    profile.has_lora = request.has_lora ? KVH_ANSWER_YES : KVH_ANSWER_NO;
    profile.required_handoff = KVH_ANSWER_NO;
    profile.namespace_bytes = kvhints::borrow(kvhints::as_bytes(model::name));
    const Stopwatch time;
    kvhints::Plan plan(rank_.context(), hint, capabilities_, table_, profile);
    const double microseconds = time.microseconds();
    if (plan.is_fetch()) {
      const kvh_plan_fetch_t fetch = plan.fetch();
      account_.step("plan", microseconds,
                    "fetch up to " + std::to_string(fetch.block_count) + " blocks, binding \"" +
                        std::string(kvhints::text(fetch.binding_id)) + "\"");
    } else {
      reason_ = plan.refusal();
      account_.step("plan", microseconds, std::string("local: ") + plan.refusal());
    }
    return plan;
  }

  // The prefetch life cycle on this rank. Gives how many blocks the request has afterwards; all
  // ranks give the same.
  std::size_t fetch(const kvh_plan_t *plan, const std::vector<std::int32_t> &tokens, std::size_t local) {
    auto planned = kvhints::sized<kvh_plan_fetch_t>();
    kvhints::check(kvh_plan_fetch(plan, &planned));
    if (planned.block_count <= local) {
      return local;  // all that the hint names is here already
    }
    const kvhints::Sequence sequence = executor::Rank::sequence(tokens);
    const std::vector<std::int32_t> ids = rank_.allocate(planned.block_count - local);
    auto params = kvhints::sized<kvh_prefetch_params_t>();
    params.policy = KVH_RANGE_BEST_EFFORT;
    params.plan = plan;
    params.sequence = sequence.get();
    params.first_block = local;
    params.block_ids = ids.data();
    params.block_id_count = ids.size();

    Stopwatch time;
    auto prefetch = begin(params);
    while (kills_ && !is_a_dead_ && !kill_a_within(*prefetch)) {
      // All was here before A could be stopped: given back, and fetched once more.
      prefetch->cancel();
      await_end(*prefetch);
      time = Stopwatch();
      prefetch = begin(params);
    }
    await_end(*prefetch);
    const kvh_prefetch_outcome_t outcome = prefetch->outcome().value();
    const double microseconds = time.microseconds();

    // What every rank has, the request has.
    const std::size_t agreed = communicator_.min(outcome.token_end) / model::tokens_per_block;
    tell_fetch(*prefetch, outcome, microseconds);
    if (agreed <= local) {
      reason_ = outcome.kind == KVH_OUTCOME_CONTENT_MISS ? "content_miss" : outcome.reason;
      for (std::int32_t id : ids) {
        rank_.give_back(id);
      }
      return local;
    }
    if (!verify(tokens, local, agreed, ids)) {
      reason_ = "wrong_bytes";  // nothing of it is used, and the run has failed
      return local;
    }
    const Stopwatch claim_time;
    const std::size_t claimed = prefetch->claim();
    const std::vector<std::int32_t> used(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(agreed - local));
    if (claimed < used.size()) {
      throw std::runtime_error("fewer blocks were claimed than were agreed on");
    }
    rank_.store(tokens, local, used);
    for (std::size_t at = used.size(); at < ids.size(); ++at) {
      rank_.give_back(ids[at]);
    }
    account_.step("claim -> CONTEXT_INIT", claim_time.microseconds(), "the blocks are the request's own, and in B's tree");
    return agreed;
  }

  std::optional<kvhints::Prefetch> begin(const kvh_prefetch_params_t &params) const {
    auto prefetch = kvhints::Prefetch::begin(transceiver_, params);
    if (!prefetch) {
      throw std::runtime_error("there was something to fetch");
    }
    return prefetch;
  }

  // An executor would run its iterations meanwhile; this one has nothing else to do.
  static void await_end(const kvhints::Prefetch &prefetch) {
    while (!prefetch.is_over() || !prefetch.is_quiesced()) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  // Kills A's processes when some blocks are in their places here and others are not. False on every
  // rank, and A lives, if the fetch was over too soon. A is stopped before it is judged whether it was, and
  // what it had sent by then is waited for: that still comes when it is dead.
  bool kill_a_within(const kvhints::Prefetch &prefetch) {
    constexpr int quiet_ms = 50;
    bool is_killed = false;
    if (mpi_.rank() == 0) {
      while (!prefetch.is_over() && prefetch.report().moved == 0) {
      }
      signal_a(SIGSTOP);
      kvh_prefetch_report_t report = prefetch.report();
      for (int ms = 0; ms < quiet_ms && !prefetch.is_over(); ++ms) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const std::size_t moved_before = report.moved;
        report = prefetch.report();
        ms = report.moved == moved_before ? ms : 0;
      }
      is_killed = !prefetch.is_over();
      signal_a(is_killed ? SIGKILL : SIGCONT);
      if (is_killed) {
        result_.blocks_moved_before_kill = report.moved;
        result_.blocks_requested_before_kill = report.requested;
        account_.line("      %-21s %12s   worker A, processes %s, with SIGKILL: %zu of %zu blocks had come to this rank",
                      "KILLED", "", list(result_.pids_a).c_str(), report.moved, report.requested);
      }
    }
    is_a_dead_ = mpi_.sum(is_killed ? 1 : 0) == 1;
    return is_a_dead_;
  }

  void signal_a(int signal) const {
    for (const std::string &pid : result_.pids_a) {
      if (kill(static_cast<pid_t>(std::stol(pid)), signal) != 0) {
        throw std::runtime_error("worker A is not there to be killed");
      }
    }
  }

  void tell_fetch(const kvhints::Prefetch &prefetch, const kvh_prefetch_outcome_t &outcome, double microseconds) {
    const kvh_prefetch_report_t report = prefetch.report();
    const double mine = static_cast<double>(report.in_progress_ns) / 1e9;
    const auto times = mpi_.gather(std::to_string(mine));
    const std::uint64_t bytes = mpi_.sum(report.bytes);
    std::ostringstream text;
    if (outcome.kind == KVH_OUTCOME_DELIVERED) {
      double slowest = 0;
      for (const std::string &seconds : times) {
        slowest = std::max(slowest, std::stod(seconds));
      }
      result_.blocks_fetched += report.moved;
      result_.blocks_skipped += report.skipped_local;
      result_.bytes_fetched += bytes;
      result_.fetch_seconds += slowest;
      char speed[96];
      std::snprintf(speed, sizeof speed, "%.2f MB in %.1f ms on the slowest rank, %.2f GB/s",
                    static_cast<double>(bytes) / 1e6, slowest * 1e3,
                    slowest > 0 ? static_cast<double>(bytes) / slowest / 1e9 : 0.0);
      text << "delivered: " << report.moved << " blocks moved on each rank, " << report.skipped_local
           << " skipped (here already); " << speed;
    } else {
      text << (outcome.kind == KVH_OUTCOME_CONTENT_MISS ? "content miss" : outcome.reason) << ": "
           << report.present << " of " << report.requested << " blocks are at A";
    }
    account_.step("PREFETCH_INIT", static_cast<double>(report.init_ns) / 1e3,
                  "A's state, over HTTP (or known already)");
    account_.step("PREFETCH_IN_PROGRESS", static_cast<double>(report.in_progress_ns) / 1e3, text.str());
    account_.step(outcome.kind == KVH_OUTCOME_DELIVERED ? "PREFETCH_COMPLETE" : "CONTEXT_INIT", microseconds,
                  "since it began, as the executor saw it; nothing touches the memory any more");
    const std::string wires = transceiver_.wires();
    const std::string transport = transceiver_.status().transport;
    result_.transport = wires.empty() ? transport : transport + ": " + wires;
  }

  // Compares every byte with what the tokens must give. The expected bytes are made only now.
  bool verify(const std::vector<std::int32_t> &tokens, std::size_t first, std::size_t end,
              const std::vector<std::int32_t> &ids) {
    const Stopwatch time;
    const model::Attention attention(tokens, mpi_.rank(), mpi_.ranks());
    std::vector<std::uint8_t> expected(rank_.block_bytes());
    std::string wrong;
    for (std::size_t block = first; block < end && wrong.empty(); ++block) {
      attention.prefill(block, expected.data());
      const std::uint8_t *found = rank_.block(ids[block - first]);
      const auto difference = std::mismatch(expected.begin(), expected.end(), found);
      if (difference.first != expected.end()) {
        const auto offset = static_cast<std::size_t>(difference.first - expected.begin());
        char text[160];
        std::snprintf(text, sizeof text, "WRONG BYTE on rank %u: block %zu, layer %zu, offset %zu: 0x%02X, expected 0x%02X",
                      mpi_.rank(), block, offset / (rank_.block_bytes() / model::layers), offset,
                      *difference.second, *difference.first);
        wrong = text;
      }
    }
    for (const std::string &text : mpi_.gather(wrong)) {
      if (!text.empty()) {
        result_.problems.push_back(text);
      }
    }
    const bool is_good = mpi_.sum(wrong.empty() ? 0 : 1) == 0;
    result_.is_verified = result_.is_verified && is_good;
    account_.step("verify", time.microseconds(),
                  is_good ? "every byte on every rank is what the tokens must give" : "a byte is wrong");
    for (const std::string &problem : result_.problems) {
      account_.line("      %s", problem.c_str());
    }
    return is_good;
  }

  void prefill_rest(const std::vector<std::int32_t> &tokens, std::uint64_t adapter, std::size_t from) {
    const Stopwatch time;
    const std::vector<std::int32_t> computed = rank_.prefill(tokens, from, adapter);
    account_.step("prefill", time.microseconds(),
                  std::to_string(computed.size()) + " whole blocks computed here, after " + std::to_string(from) + " reused");
    if (is_a_dead_ && !verify(tokens, from, from + computed.size(), computed)) {
      reason_ = "wrong_bytes";  // what came from A late went where it had nothing to do
    }
    if (reason_.empty()) {
      account_.line("      -> served with A's blocks\n");
    } else {
      ++result_.fallbacks[reason_];
      account_.line("      -> local prefill, because: %s\n", reason_.c_str());
    }
    // The next request starts with the system prompt alone again.
    rank_.evict(computed);
  }

  void finish() {
    // A's pins can only be counted once A has heard that nothing more is wanted.
    const std::uint64_t own_pins = mpi_.sum(rank_.live_pins());
    if (mpi_.rank() == 0) {
      result_.pins_left = own_pins;
      account_.line("  Metrics that are not zero, rank 0");
      if (!is_a_dead_) {
        files::write(run_dir_ + "/b.done", "");
        files::await(run_dir_ + "/a.result", patience);
        result_.pins_left += std::stoull(files::value(files::read_note(run_dir_ + "/a.result"), "pins"));
        account_.metrics("worker A", files::read(run_dir_ + "/a.metrics"));
      }
      account_.metrics("worker B", rank_.context().metrics());
      account_.metrics("B's server that trusts no hints", untrusting_.metrics());
      account_.line("\n  Transport: %s", result_.transport.c_str());
      account_.line("  Pins left: %llu", static_cast<unsigned long long>(result_.pins_left));
      for (const std::string &problem : result_.problems) {
        account_.line("  PROBLEM: %s", problem.c_str());
      }
      account_.line("  %s", result_.is_good() ? "All of it held." : "NOT all of it held.");
    }
  }

  static std::string list(const std::vector<std::string> &values) {
    std::string text;
    for (const std::string &value : values) {
      text += (text.empty() ? "" : ", ") + value;
    }
    return text;
  }

  const executor::Mpi &mpi_;
  std::string run_dir_;
  bool kills_;
  bool is_a_dead_ = false;
  Account account_;
  files::Note announced_;
  std::string endpoint_;
  executor::Rank rank_;
  kvhints::Context untrusting_;
  kvhints::Capabilities capabilities_;
  kvhints::BindingTable table_;
  kvhints::Communicator communicator_;
  kvhints::Transceiver transceiver_;
  Result result_;
  std::string reason_;  // rank 0: why the present request has no use of its hint
};

}  // namespace

int main(int argc, char **argv) {
  bool json = false, kills = false, is_known = argc >= 2;
  for (int at = 2; at < argc; ++at) {
    const std::string option = argv[at];
    json = json || option == "--json";
    kills = kills || option == "--kill";
    is_known = is_known && (option == "--json" || option == "--kill");
  }
  if (!is_known) {
    std::fprintf(stderr, "usage: worker_b RUN_DIR [--json] [--kill]\n");
    return 2;
  }
  const executor::Mpi mpi;
  try {
    WorkerB(mpi, argv[1], !json, kills).run(json);
    return 0;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "worker B, rank %u: %s\n", mpi.rank(), error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}
