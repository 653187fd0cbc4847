"""Neural phrase-based machine translation (NPMT, Huang et al. 2018): model, likelihood, search, analysis."""
