"""Speech that anyone can make: sentences of a small grammar, spoken by espeak-ng, as labelled frames."""
