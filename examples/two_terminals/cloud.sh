#!/bin/sh
# Terminal 1: a broker and a coordinator, waiting for two devices. Ctrl-C ends both.
#
#   pip install 'sedge-fl[all]' && apt-get install mosquitto
#   sh cloud.sh                       # here
#   sh device.sh pi-1                 # in terminal 2; on a real device, copy its folder there first
#   sh device.sh pi-2                 # in terminal 3
set -eu
cd "$(dirname "$0")"
url=mqtt://127.0.0.1:${PORT:-1883}

sedge-cloud init fleet --fleet home --url "$url"
for device in pi-1 pi-2; do
    sedge-cloud -c fleet/cloud.toml device add "$device" --out "fleet/$device"
done
python make_data.py fleet/pi-1/train.npz fleet/pi-2/train.npz
sedge-export sedge_export.models:avgcnn --sample-shape 1,28,28 --batch-size 32 --num-classes 10 \
    --name avgcnn --out fleet/bundle
sedge-cloud -c fleet/cloud.toml run start first --bundle fleet/bundle --run-file run.toml

PATH=$PATH:/usr/sbin mosquitto -c fleet/mosquitto.conf &
trap 'kill $!' EXIT
sedge-cloud -c fleet/cloud.toml serve
