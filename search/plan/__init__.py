"""What a step of training costs over a link, before it is run: `taugrad plan`."""
