"""A site's end."""

from fedssl.engines.flower import client

app = client.app
