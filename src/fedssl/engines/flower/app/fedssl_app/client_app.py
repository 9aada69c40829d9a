"""The ClientApp of a site."""

from fedssl.engines.flower import client

app = client.app
