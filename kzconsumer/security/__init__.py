"""TLS contexts and SASL exchanges, for both clients. Read `sasl` first.

`sasl`: mechanisms with a password (PLAIN, SCRAM, DIGEST-MD5). `tokens`: OAUTHBEARER, whose token a file or a command
gives, and Kerberos. `tls`: certificates and keys, and what a failure of TLS means.
"""
