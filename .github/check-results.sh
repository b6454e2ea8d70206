#!/usr/bin/env bash
# Usage: check-results.sh BASE PROPOSED COMMENT: compare two stores of results and write a comment.
# Exit code 1 if the proposed store changes or removes a file, adds one that is no result, or if
# `fedbench verify` refuses it. Both are only read: nothing of the proposed one is executed.
set -euo pipefail
base=$1 proposed=$2 comment=$3
code=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

block() {  # block FILE: its text, in a fence that no text of a row can end
  printf '~~~~~~~~text\n%s\n~~~~~~~~\n\n' "$(tr -d '\000-\010\013-\037~' < "$1")"
}

check() {  # check COMMAND...: its output; what it refuses, this script refuses
  "$@" > "$folder/output" 2>&1 || code=1
  block "$folder/output"
}

files() {  # files STORE: type and path of everything that is no folder, and the hash of plain files
  (cd "$1" && find . ! -type d -printf '%y %P\n' -type f -exec sha256sum -z {} + | tr '\0' '\n' | LC_ALL=C sort)
}

# What `fedbench merge` writes, and the data card, which follows from the rows.
results='^f ((rows|packed)/[^/]+\.parquet|cells/[^/]+/curve\.parquet|trials/.+)$'
card=' (\./)?(README\.md|CITATION\.cff|croissant\.json)$'

{
  printf '## Proposed results\n\n'
  files "$base" | grep -vE "$card" > "$folder/base"
  files "$proposed" | grep -vE "$card" > "$folder/proposed"
  {
    comm -23 "$folder/base" "$folder/proposed" | sed 's/^/removed or changed: /'
    comm -13 "$folder/base" "$folder/proposed" | grep -E '^[a-z] ' | grep -vE "$results" \
      | sed 's/^/no result: /' || true
  } > "$folder/unexpected"
  if [ -s "$folder/unexpected" ]; then
    code=1
    block "$folder/unexpected"
  else
    check fedbench verify --store "$proposed"
  fi
  if [ "$code" -eq 0 ]; then
    python -m fedbench.leaderboards.changes "$base" "$proposed"
  else
    printf 'Ranks follow when nothing contradicts the rows.\n'
  fi
} > "$comment"
exit "$code"
