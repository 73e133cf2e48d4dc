#!/usr/bin/env bash
# Hosts as network namespaces behind one switch, which is in a namespace of its own: nothing reaches the machine's own
# network, and nothing of it is changed. Host N has the address 10.77.0.N.
#
#   network.sh up NAME HOSTS      network.sh down NAME
set -euo pipefail
name=$2

down() {
    for space in $(ip netns list | cut -d' ' -f1 | grep -E "^$name-([0-9]+|switch)$"); do
        ip netns delete "$space"
    done
}

up() {
    ip netns add "$name-switch"
    ip -n "$name-switch" link add switch type bridge
    ip -n "$name-switch" link set switch up
    for host in $(seq "$1"); do
        ip netns add "$name-$host"
        ip -n "$name-$host" link set lo up
        ip -n "$name-$host" link add lan type veth peer name "port$host" netns "$name-switch"
        ip -n "$name-$host" address add "10.77.0.$host/24" dev lan
        ip -n "$name-$host" link set lan up
        ip -n "$name-switch" link set "port$host" master switch up
    done
}

case $1 in
up) trap down ERR; up "$3" ;;
down) down ;;
esac
