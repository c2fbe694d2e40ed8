"""Files of graphs: zip archives of JSON documents and weights, validated when read."""
