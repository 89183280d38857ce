"""A rule, a quantizer, a policy and a codec for taugrad, one file each; docs/extending.md shows them."""
