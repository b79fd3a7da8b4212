#!/bin/sh
# Terminal 1: a broker and a coordinator, which wait for two devices. Ctrl-C ends both.
#
#   pip install '../..[all]' && apt-get install mosquitto dataset-fashion-mnist
#   sh cloud.sh                       # here; to start over, rm -r fleet first
#   sh device.sh pi-1                 # in terminal 2
#   sh device.sh pi-2                 # in terminal 3
#
# Debian's own broker uses the same port: stop it, or use another port, PORT=1884 sh cloud.sh. For real devices
# run HOST=192.168.1.10 sh cloud.sh with this machine's address, copy fleet/pi-1 to the device and run
# sedge-edge run inside it.
set -eu
cd "$(dirname "$0")"
url=mqtt://${HOST:-127.0.0.1}:${PORT:-1883}

sedge-cloud init fleet --fleet home --url "$url"
for device in pi-1 pi-2; do
    sedge-cloud -c fleet/cloud.toml device add "$device" --out "fleet/$device"
done
python make_data.py fleet/pi-1/train.npz fleet/pi-2/train.npz
sedge-export sedge_export.models:avgcnn --sample-shape 1,28,28 --batch-size 32 --num-classes 10 \
    --name avgcnn --out fleet/bundle
sedge-cloud -c fleet/cloud.toml run start first --bundle fleet/bundle --run-file run.toml

exec sedge-cloud up fleet
