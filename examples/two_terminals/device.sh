#!/bin/sh
# Terminals 2 and 3: one device each, until Ctrl-C. Updates that are not sent yet stay on its disk.
set -eu
cd "$(dirname "$0")/fleet/$1"
exec sedge-edge run
