# In a fresh Debian, in a network of its own: from the packages to a round that a device has trained.
set -eu
cd /journey
ls /opt/sedge/*/lib/sedge_protocol/__pycache__/errors.*.pyc
sedge-cloud --version
sedge-edge --version
systemd-analyze verify /lib/systemd/system/sedge-cloud.service /lib/systemd/system/sedge-edge.service
sedge-cloud init --service --fleet home --tls pi.local --url mqtts://127.0.0.1:8883
install -d -o mosquitto /run/mosquitto /var/log/mosquitto  # as its unit does
mosquitto -c /etc/mosquitto/mosquitto.conf &
echo $! > /run/mosquitto.pid  # Debian 13's Mosquitto writes none
sed -i "s|^reload = .*|reload = \"sh -c 'kill -HUP \$(cat /run/mosquitto.pid)'\"|" /etc/sedge/cloud.toml
sedge-cloud serve 2> cloud.log &
sedge-cloud device add pi-1 --service
cp pi-1/* /etc/sedge
cp train.npz /etc/sedge
sedge-cloud run start one --bundle bundle --run-file run.toml
mkdir -p /var/lib/sedge
sedge-edge doctor
sedge-edge once --timeout-s 120
sleep 2
sedge-cloud doctor
sedge-cloud run list
# A store elsewhere takes no further package: here nobody listens.
printf 'fleet = "home"\nstate_dir = "elsewhere"\n' > elsewhere.toml
printf '[store]\nurl = "postgresql://sedge@127.0.0.1:1/home"\n' | cat elsewhere.toml - > rows.toml
printf '[blobs]\nurl = "s3://home"\nendpoint = "http://127.0.0.1:1"\n' | cat elsewhere.toml - > blobs.toml
sedge-cloud -c rows.toml run list 2>&1 | grep "postgresql://sedge@127.0.0.1:1/home: .*Connection refused"
AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x sedge-cloud -c blobs.toml run list 2>&1 | grep "look into s3://home: "
# An upgrade restarts the services. There is no systemd here: what the packages ask of it is written down.
mkdir -p /run/systemd/system
printf '#!/bin/sh\necho "$@" >> /journey/asked\n' > /usr/local/bin/systemctl
chmod +x /usr/local/bin/systemctl
echo "DPkg::Path \"$PATH\";" > /etc/apt/apt.conf.d/systemctl  # apt's own has no /usr/local
apt-get -o APT::Update::Error-Mode=any update
dpkg-query -W 'sedge-*' > before
DEBIAN_FRONTEND=noninteractive apt-get --assume-yes upgrade
dpkg-query -W 'sedge-*' | diff before - | grep -c "^[<>]" | grep -x 4
apt-cache policy | grep "o=Sedge"
grep -x "try-restart sedge-cloud" asked
grep -x "try-restart sedge-edge" asked
stat -c '%U %a %n' /var/lib/sedge-cloud /etc/mosquitto/sedge/passwords /etc/sedge/coordinator-password
