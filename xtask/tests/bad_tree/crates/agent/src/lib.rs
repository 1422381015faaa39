pub fn talk() {
    println!("{}", std::env::var("HOME").expect("set"));
    let _ = Some(1).expect("the constant one is there");
    // TODO: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
    todo!();
}

pub static mut COUNT: u32 = 0;
