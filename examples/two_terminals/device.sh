#!/bin/sh
# Terminals 2 and 3: one device each. It works until Ctrl-C; what it has not sent yet waits on its disk.
set -eu
cd "$(dirname "$0")/fleet/$1"
exec sedge-edge run
