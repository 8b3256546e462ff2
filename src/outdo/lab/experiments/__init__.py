"""The experiments of the lab, one file each; `outdo.lab.registry` finds them."""
