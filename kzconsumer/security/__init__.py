"""TLS contexts and SASL exchanges, for both clients. Read `sasl` first.

`tokens`: OAUTHBEARER and Kerberos. `tls`: certificates and keys.
"""
