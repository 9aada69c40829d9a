"""A site's end."""

from fedssl.engines.flower.client import app as app
