"""Runs a fleet over a real MQTT broker in real time, and starts such brokers for emulations and tests.

brokers   Mosquitto or amqtt for the duration of a run, or a broker that is already running
device    one emulated device: the real agent with its own folder on disk
fleet     all devices and the coordinator, for one run
"""
