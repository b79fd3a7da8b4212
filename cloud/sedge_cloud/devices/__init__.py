"""The devices that are there, and the bytes that come from them and go to them."""
