//! Pitfalls of the lexer: nothing in this file is a finding but the last function.
//!
//! ```
//! "1".parse::<u32>().unwrap();
//! ```
/* a comment /* in a comment */ with .unwrap() and println!("x") */
pub const QUOTED: &str = "dbg!(1) .unwrap() \" still quoted todo!()";
pub const RAW: &str = r#"println!("x") " still raw"#;
pub const QUOTE: char = '"';
pub const ESCAPED: char = '\'';
pub fn lifetimes<'a>(text: &'a str) -> &'a str {
    // "an open quote, and .unwrap() behind it
    text
}
#[cfg(test)]
mod only_tests;

pub fn found(text: Option<&str>) -> &str {
    text.unwrap()
}
