"""The API in the wire form of OpenStack Zaqar v2, below `/v2`."""
