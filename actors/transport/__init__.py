"""How frames and grants travel between processes: ``protocol`` says what is kept, ``streams`` keeps it. No Ray."""
