"""A fleet over a real MQTT broker, in real time; and such a broker for an emulation or a test.

brokers      Mosquitto or amqtt, started for a while, or a broker that runs elsewhere
device       one emulated device: the real agent on its real disk
fleet        all of them and the coordinator, for one run
"""
