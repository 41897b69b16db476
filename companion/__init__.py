"""How results are drawn, judged and run; knows no paper by name."""
