# Lines of (case, subject, bytes, least, median microseconds) -> tables in Markdown.

function ratio(ours, theirs) { return theirs > 0 ? sprintf("%.3f", ours / theirs) : "" }

{
  if (!($1 in seen)) { seen[$1] = 1; order[++count] = $1 }
  bytes[$1] = $3; least[$1, $2] = $4; median[$1, $2] = $5
}

END {
  print "Times in microseconds, least / median; ratios of ours to theirs likewise.\n"
  print "| input | kvhints | simdjson | ratio | nlohmann | msgspec | pydantic | pydantic / kvhints |"
  print "|---|---|---|---|---|---|---|---|"
  for (at = 1; at <= count; ++at) {
    name = order[at]
    if (!((name, "simdjson") in least)) continue
    row = "| " name
    row = row " | " least[name, "kvhints"] " / " median[name, "kvhints"]
    row = row " | " least[name, "simdjson"] " / " median[name, "simdjson"]
    row = row " | " ratio(least[name, "kvhints"], least[name, "simdjson"]) " / " ratio(median[name, "kvhints"], median[name, "simdjson"])
    row = row " | " least[name, "nlohmann"] " / " median[name, "nlohmann"]
    row = row " | " least[name, "msgspec"] " / " median[name, "msgspec"]
    row = row " | " least[name, "pydantic"] " / " median[name, "pydantic"]
    row = row " | " sprintf("%.0f / %.0f", least[name, "pydantic"] / least[name, "kvhints"], median[name, "pydantic"] / median[name, "kvhints"])
    print row " |"
  }
  honest = "64 KiB"
  per_byte = least[honest, "simdjson"] / bytes[honest]; per_byte_median = median[honest, "simdjson"] / bytes[honest]
  printf "\nNanoseconds for a byte beside what simdjson takes for one of the honest 64 KiB (%.2f / %.2f).\n\n", per_byte * 1000, per_byte_median * 1000
  print "| input | bytes | ns a byte | ratio |"
  print "|---|---|---|---|"
  for (at = 1; at <= count; ++at) {
    name = order[at]
    if (name !~ /^hostile: /) continue
    ours = least[name, "kvhints"] / bytes[name]; ours_median = median[name, "kvhints"] / bytes[name]
    printf "| %s | %d | %.2f / %.2f | %.2f / %.2f |\n", substr(name, 10), bytes[name], ours * 1000, ours_median * 1000, ours / per_byte, ours_median / per_byte_median
  }
  print "\nCalls, nanoseconds, and above an empty exported function.\n"
  print "| call | ns | above |"
  print "|---|---|---|"
  empty = "empty exported call"
  for (at = 1; at <= count; ++at) {
    name = order[at]
    if (name !~ /^(snapshot|empty)/) continue
    printf "| %s | %.1f / %.1f | %.1f / %.1f |\n", name, least[name, "kvhints"] * 1000, median[name, "kvhints"] * 1000, (least[name, "kvhints"] - least[empty, "kvhints"]) * 1000, (median[name, "kvhints"] - median[empty, "kvhints"]) * 1000
  }
}
