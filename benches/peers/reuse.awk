# Lines of (case, subject, unit, least, median) -> tables in Markdown; ratios are of medians.

BEGIN { FS = "\t" }

function ratio(upper, lower) { return upper > 0 && lower > 0 ? sprintf("%.3f", upper / lower) : "" }
function both(name, subject) { return (name, subject) in median ? least[name, subject] " / " median[name, subject] : "" }

{
  if (!($1 in seen)) { seen[$1] = 1; order[++count] = $1 }
  least[$1, $2] = $4; median[$1, $2] = $5; unit[$1] = $3
}

END {
  print "Least / median everywhere; ratios are of medians.\n"
  print "Names and hashes of 131,072 tokens beside SHA-256 over the same bytes, microseconds.\n"
  print "| case | names and hashes | sha2 | ratio |"
  print "|---|---|---|---|"
  for (at = 1; at <= count; ++at) {
    name = order[at]
    if ((name, "sha2") in median)
      print "| " name " | " both(name, "names and hashes") " | " both(name, "sha2") " | " ratio(median[name, "names and hashes"], median[name, "sha2"]) " |"
  }
  print "\nMatch, pin and unpin of a stored prefix, names and keys known: nanoseconds a block, for blocks in"
  print "the tree / blocks in the prefix. The last columns say how many times as long the peers take.\n"
  print "| tree / prefix | without ids | with ids | match alone | C++ tree | kvbm-logical | C++ / without | C++ / with | kvbm / without | kvbm / with |"
  print "|---|---|---|---|---|---|---|---|---|---|"
  ours = "match, pin, unpin"; ids = ours ", ids"
  for (at = 1; at <= count; ++at) {
    name = order[at]
    if (!((name, ours) in median)) continue
    print "| " name " | " both(name, ours) " | " both(name, ids) " | " both(name, "match") " | " both(name, "C++ tree") " | " both(name, "kvbm") " | " ratio(median[name, "C++ tree"], median[name, ours]) " | " ratio(median[name, "C++ tree"], median[name, ids]) " | " ratio(median[name, "kvbm"], median[name, ours]) " | " ratio(median[name, "kvbm"], median[name, ids]) " |"
  }
  print "\nThe executor's calls, alone and while another thread matches, pins and unpins; nanoseconds.\n"
  print "| call | alone | beside a reader | ratio |"
  print "|---|---|---|---|"
  for (at = 1; at <= count; ++at) {
    name = order[at]
    if ((name, "alone") in median)
      print "| " name " | " both(name, "alone") " | " both(name, "beside a reader") " | " ratio(median[name, "beside a reader"], median[name, "alone"]) " |"
  }
  print "\nLookups and pins of 1,024-block prefixes, thousands a second.\n"
  name = "lookups and pins"
  print "| 1 thread | 2 threads | ratio |"
  print "|---|---|---|"
  print "| " both(name, "1 thread") " | " both(name, "2 threads") " | " ratio(median[name, "2 threads"], median[name, "1 thread"]) " |"
  print "\n| blocks in the tree | bytes for each, its 128 of tokens included |"
  print "|---|---|"
  for (at = 1; at <= count; ++at) {
    name = order[at]
    if ((name, "memory") in median) print "| " name " | " median[name, "memory"] " |"
  }
}
