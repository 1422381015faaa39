//! Grammars of answers, as text in the Lark dialect of llguidance.
