"""The fleet's Mosquitto: its accounts and certificates."""
