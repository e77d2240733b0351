"""defaults"""
