"""The tests of menv. Pgx installs a package of this name, which this file keeps out."""
