pub const INFO: u32 = 1;

#[cfg(test)]
mod tests {
    #[test]
    fn unwrap_is_fine_here() {
        "1".parse::<u32>().unwrap();
    }
}
