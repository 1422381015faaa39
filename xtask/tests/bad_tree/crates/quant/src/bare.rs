pub const INFO: u32 = 2;
