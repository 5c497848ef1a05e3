#!/bin/sh
# Gives each user of redis.conf a password: writes into DIRECTORY
#   redis.conf      with the hashes of the passwords, for the store
#   passwords.env   with the passwords, one VARIABLE=password a line: copy it into your secret store
#
#   deploy/make-passwords.sh DIRECTORY
set -eu
folder=${1:?the directory to write to}
here=$(dirname "$0")
if [ -e "$folder/passwords.env" ]; then
    echo "$folder/passwords.env exists: remove it first, if no store uses these passwords" >&2
    exit 1
fi
mkdir -p "$folder"
chmod 700 "$folder"
cp "$here/redis.conf" "$folder/redis.conf"
chmod 644 "$folder/redis.conf" # the store's own user reads it, and no password can be computed from its hashes
umask 077
: > "$folder/passwords.env"
for user in later later-api later-worker later-spark later-operator later-monitor admin sentinel replica; do
    password=$(openssl rand -hex 24)
    hash=$(printf %s "$password" | openssl dgst -sha256 -r | head -c 64)
    sed "s/SHA256-OF-THE-PASSWORD-OF-$user /$hash /" "$folder/redis.conf" > "$folder/redis.conf.new"
    cat "$folder/redis.conf.new" > "$folder/redis.conf"
    rm "$folder/redis.conf.new"
    echo "PASSWORD_OF_$(echo "$user" | tr a-z- A-Z_)=$password" >> "$folder/passwords.env"
done
echo "GRAFANA_PASSWORD=$(openssl rand -hex 24)" >> "$folder/passwords.env"
