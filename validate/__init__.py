"""Does what ships compute what the reference computes?"""
