"""Views of graphs and builds for people: facts, drawings, pages and progress bars."""
