//! A device.
//!
//! ```
//! ```
#[allow(dead_code)]
fn long() {
    let _line_0 = 0;
    let _line_1 = 1;
    let _line_2 = 2;
    let _line_3 = 3;
    let _line_4 = 4;
    let _line_5 = 5;
    let _line_6 = 6;
    let _line_7 = 7;
    let _line_8 = 8;
    let _line_9 = 9;
    let _line_10 = 10;
    let _line_11 = 11;
    let _line_12 = 12;
    let _line_13 = 13;
    let _line_14 = 14;
    let _line_15 = 15;
    let _line_16 = 16;
    let _line_17 = 17;
    let _line_18 = 18;
    let _line_19 = 19;
    let _line_20 = 20;
    let _line_21 = 21;
    let _line_22 = 22;
    let _line_23 = 23;
    let _line_24 = 24;
    let _line_25 = 25;
    let _line_26 = 26;
    let _line_27 = 27;
    let _line_28 = 28;
    let _line_29 = 29;
    let _line_30 = 30;
    let _line_31 = 31;
    let _line_32 = 32;
    let _line_33 = 33;
    let _line_34 = 34;
    let _line_35 = 35;
    let _line_36 = 36;
    let _line_37 = 37;
    let _line_38 = 38;
    let _line_39 = 39;
    let _line_40 = 40;
    let _line_41 = 41;
    let _line_42 = 42;
    let _line_43 = 43;
    let _line_44 = 44;
    let _line_45 = 45;
    let _line_46 = 46;
    let _line_47 = 47;
    let _line_48 = 48;
    let _line_49 = 49;
    let _line_50 = 50;
    let _line_51 = 51;
    let _line_52 = 52;
    let _line_53 = 53;
    let _line_54 = 54;
    let _line_55 = 55;
    let _line_56 = 56;
    let _line_57 = 57;
    let _line_58 = 58;
    let _line_59 = 59;
    let _line_60 = 60;
    let _line_61 = 61;
    let _line_62 = 62;
    let _line_63 = 63;
    let _line_64 = 64;
    let _line_65 = 65;
    let _line_66 = 66;
    let _line_67 = 67;
    let _line_68 = 68;
    let _line_69 = 69;
    let _line_70 = 70;
    let _line_71 = 71;
    let _line_72 = 72;
    let _line_73 = 73;
    let _line_74 = 74;
}

#[expect(dead_code, reason = "an example of a good one")]
fn raw() {
    unsafe { std::hint::unreachable_unchecked() }
    // SAFETY: an example; the line above shows a bad one.
    unsafe { std::hint::unreachable_unchecked() }
}

/// A type is not unsafe code.
pub type Kernel = unsafe fn(&[u8]);







































































pub fn end() {}
