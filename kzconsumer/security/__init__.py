"""TLS contexts and SASL exchanges, for both clients. Read `sasl` first."""
