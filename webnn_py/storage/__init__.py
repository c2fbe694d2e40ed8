"""Files of graphs: a zip archive of JSON documents and weights, checked before it is believed."""
