"""Secure aggregation (Bonawitz et al., CCS 2017): the server learns only the sum of what clients send.

Four exchanges between the server and the clients of a round, after training:

    keys     a client announces two public keys
    share    it splits two secrets among all clients, encrypted for each: a seed and a private key
    mask     it sends its integers, masked by the seed and by a key agreed with every other client
    unmask   it reveals its shares: of the seeds of clients that are still there, of the keys of others

Masks that were agreed cancel in the sum. Key agreement, encryption and secret sharing are those of
`flwr.common.secure_aggregation`; masks are AES-256 in counter mode (Flower's own mask generator reduces a key
to 32 bits, which can be searched).
"""
