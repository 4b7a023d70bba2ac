"""Running things: engine children and their links, the stream registry, the detokenizer, supervision, sd_notify."""
