"""`kstep watch`: the page of `kstep report` while runs grow, from a server on this machine.

`newest` keeps what the page shows and reads again only what has changed, `guard` decides which
requests are answered, `server` answers them. The page, its script and its data are those of
`report.page`.
"""
