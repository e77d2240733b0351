"""The shipped implementation of each SPI."""
