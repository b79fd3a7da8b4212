"""A fleet over a real MQTT broker, in real time; and such a broker for an emulation or a test.

mosquitto      start Mosquitto, or take a running broker
amqtt_broker   amqtt, where there is no Mosquitto
exit_guard     the broker ends with this process
device         one emulated device: the real agent on its real disk
fleet          all of them and the coordinator, for one run
"""
