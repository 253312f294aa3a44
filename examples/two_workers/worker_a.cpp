// Worker A: has served conversations and holds their KV blocks; serves them to whoever asks by
// content name, until worker B is done.
// usage: worker_a RUN_DIR [--corrupt]   (under mpirun)
#include "executor.hpp"
#include "files.hpp"

#include <unistd.h>

#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr std::int32_t block_count = 160;
constexpr auto patience = std::chrono::seconds(100);

std::vector<std::int32_t> served_tokens(const std::string &run_dir, const std::string &conversation) {
  return files::read_tokens(run_dir + "/" + conversation + ".served.tokens");
}

// Serves a conversation: what its beginning shares with earlier ones is there already. Gives the
// ids of the blocks that are new.
std::vector<std::int32_t> serve(executor::Rank &rank, const std::vector<std::int32_t> &tokens) {
  return rank.prefill(tokens, rank.held_blocks(tokens));
}

// What the router hears of: every block that was ever stored.
std::string announcement(const std::string &run_dir, std::uint16_t port, const std::vector<std::string> &pids) {
  std::ostringstream note;
  note << "endpoint http://127.0.0.1:" << port << "/v1/data_transceiver_state\n";
  for (const std::string &pid : pids) {
    note << "pid " << pid << "\n";
  }
  for (const char *conversation : {"boat", "oven", "bridge"}) {
    const auto sequence = executor::Rank::sequence(served_tokens(run_dir, conversation));
    for (std::uint64_t hash : sequence.block_hashes()) {
      note << "block_hash " << hash << "\n";
    }
  }
  return note.str();
}

void run(const executor::Mpi &mpi, const std::string &run_dir, bool corrupt) {
  executor::Rank rank(mpi, block_count);
  const auto boat = serve(rank, served_tokens(run_dir, "boat"));
  const auto oven = serve(rank, served_tokens(run_dir, "oven"));
  serve(rank, served_tokens(run_dir, "bridge"));
  rank.evict(oven);  // the router has not heard of it yet
  if (corrupt && mpi.rank() == mpi.ranks() - 1) {
    rank.block(boat[boat.size() / 2])[12345] ^= 1;
  }

  const kvhints::Transceiver transceiver = rank.transceiver();
  const auto entries = mpi.gather(std::string(transceiver.rank_entry().text()));
  const auto pids = mpi.gather(std::to_string(getpid()));
  if (mpi.rank() == 0) {
    transceiver.set_state(entries);
    const std::uint16_t port = transceiver.serve_http("127.0.0.1", 0);
    files::write(run_dir + "/a.ready", announcement(run_dir, port, pids));
  }

  files::await(run_dir + "/b.done", patience);
  // B's last word may still be on its way to the transceiver's thread.
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (transceiver.status().requests_in_flight > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::uint64_t pins = mpi.sum(rank.live_pins());
  if (mpi.rank() == 0) {
    files::write(run_dir + "/a.metrics", rank.context().metrics());
    files::write(run_dir + "/a.result", "pins " + std::to_string(pins) + "\n");
  }
}

}  // namespace

int main(int argc, char **argv) {
  const bool corrupt = argc == 3 && std::string(argv[2]) == "--corrupt";
  if (argc != 2 && !corrupt) {
    std::fprintf(stderr, "usage: worker_a RUN_DIR [--corrupt]\n");
    return 2;
  }
  const executor::Mpi mpi;
  try {
    run(mpi, argv[1], corrupt);
    return 0;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "worker A, rank %u: %s\n", mpi.rank(), error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}
