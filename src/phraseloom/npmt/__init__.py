"""Neural phrase-based machine translation (NPMT, Huang et al. 2018): options, model, likelihood, search, analysis."""
