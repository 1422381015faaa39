//! Text of every kind, the same on every machine: what golden ids are made of.
//!
//! Changing anything here changes the text; then `tests/golden/make/text_ids.py` must be run again.

use std::fmt::Write;

/// Number of mixed chunks; together 20 MB and a little more.
pub const CHUNKS: u64 = 324;

/// Bytes that a mixed chunk has at least.
pub const CHUNK_BYTES: usize = 64 << 10;

/// Texts that once were too much for some tokenizer: name and text, a megabyte each.
pub fn stress() -> Vec<(&'static str, String)> {
    const MEGABYTE: usize = 1 << 20;
    let repeated = |unit: &str| unit.repeat(MEGABYTE / unit.len());
    let mut random = Random::new(u64::MAX);
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let base64 = (0..MEGABYTE).map(|_| char::from(*random.pick(letters))).collect();
    let mut json = String::from("[");
    while json.len() < MEGABYTE {
        let (a, b) = (random.below(100_000), random.below(7));
        write!(json, r#"{{"id":{a},"name":"x{b}","tags":["q","\u00e9"],"ok":true}},"#).unwrap();
    }
    vec![
        ("letter", repeated("a")),
        ("dot", repeated(".")),
        ("space", repeated(" ")),
        ("ideograph", repeated("你")),
        ("newline", repeated("\n")),
        ("two letters", repeated("ab")),
        ("word without a space", repeated("antidisestablishment")),
        ("base64", base64),
        ("json on one line", json),
        ("mark", repeated("\u{301}")),
        ("no class", repeated("\u{200b}")),
        ("space and newline", repeated(" \n")),
    ]
}

/// One chunk of mixed text.
pub fn chunk(index: u64) -> String {
    let mut random = Random::new(index);
    let mut text = String::with_capacity(CHUNK_BYTES + 4096);
    while text.len() < CHUNK_BYTES {
        match random.below(16) {
            0..=4 => prose(&mut random, &mut text),
            5..=7 => code(&mut random, &mut text),
            8 | 9 => script(&mut random, &mut text),
            10 => emoji(&mut random, &mut text),
            11 => numbers(&mut random, &mut text),
            12 => white_space(&mut random, &mut text),
            13 => marked_up(&mut random, &mut text),
            14 => joined(&mut random, &mut text),
            _ => anything(&mut random, &mut text),
        }
    }
    text
}

const WORDS: &str = "the of and to in a is that for it was on are as with his they at be this from \
    have or by one had not but what all were when we there can an your which their said if do will \
    each about how up out them then she many some so these would other into has more her two like \
    him see time could no make than first been its who now people my made over did down only way \
    find use may water long little very after words called just where most know tokenizer \
    vocabulary implementation straightforward internationalization unbelievable don't \
    we're Alice's O'Neill naïve café über Straße résumé Dvořák İstanbul ﬁnd ½ No. e.g. i.e. U.S.A. \
    3rd HTTP/2 C++ f(x)";

const IDENTIFIERS: &str = "self index_of parseHTTPResponse kMaxSize __init__ i32 u8 Vec String buf \
    MAX_LEN ptr std::io impl fn let mut return if else while for in match async def class lambda \
    import public static void const char int double nullptr => -> :: != <= >= && || ++ -- += << >> \
    { } ( ) [ ] ; , . < > ? : # @ $ % ^ & * ! ~ ` | \\ / 0x1F 1e-9 3.14159 42 0b1010 1_000_000";

const SCRIPTS: [&str; 12] = [
    "你好 世界 我们 今天 天气 很好 计算机 科学 人工智能 模型 的 了 是 在 有 和 中国 北京 。 ， ！ 《红楼梦》",
    "日本語 こんにちは カタカナ ひらがな ですます 東京・大阪 ー ゛ ゝ 々 〆 「引用」 ﾊﾝｶｸ 〇",
    "안녕하세요 세계 오늘 날씨가 좋습니다 한국어 각 \u{1112}\u{1161}\u{11ab}",
    "Привет мир сегодня хорошая погода ещё Ёжик объект",
    "مرحبا بالعالم اليوم الطقس جميل ٱلْعَرَبِيَّة ١٢٣٤٥ ،؟",
    "किसान नमस्ते दुनिया आज मौसम अच्छा है क्षत्रिय १२३४ ।",
    "สวัสดีชาวโลก วันนี้อากาศดี ภาษาไทย ๑๒๓",
    "שלום עולם היום מזג האוויר נעים בְּרֵאשִׁית",
    "Γειά σου Κόσμε σήμερα ο καιρός είναι καλός ἀρχή",
    "Xin chào thế giới hôm nay thời tiết đẹp Việt Nam",
    "தமிழ் வணக்கம் உலகம் தெலుగు ಕನ್ನಡ বাংলা",
    "ქართული հայերեն አማርኛ ᚠᚢᚦ 𐌰𐌱𐌲 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 Ⅷ ㊗ ①②",
];

const EMOJI: [&str; 14] = [
    "👩‍👩‍👧‍👦",
    "👍🏽",
    "🏳️‍🌈",
    "🇩🇪🇯🇵",
    "❤️",
    "1️⃣",
    "🤷🏿‍♀️",
    "😀😀😀",
    "🧑‍🚀",
    "☕",
    "©®™",
    "→⇒∑∞≠",
    "░▒▓█",
    "🫠",
];

const SPACES: [&str; 15] = [
    " ",
    "  ",
    "    ",
    "\t",
    "\t\t",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\u{a0}",
    "\u{3000}",
    "\u{2028}",
    "\u{85}",
    "\u{b}",
    "                                ",
];

const MARKED_UP: [&str; 14] = [
    "<｜begin▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<|EOT|>",
    "<｜▁pad▁｜>",
    "</div>\n",
    "<a href=\"https://example.org/?q=1&r=%20\">",
    "&amp;",
    "**bold**",
    "| a | b |\n|---|---|\n",
    "```rust\n",
];

fn prose(random: &mut Random, text: &mut String) {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    for _ in 0..random.below(60) {
        let word = random.word(&words);
        match random.below(12) {
            0 => text.push_str(&word.to_uppercase()),
            1 => text.extend(word.chars().rev()),
            _ => text.push_str(word),
        }
        text.push_str(
            random.word(&[" ", " ", " ", " ", " ", ", ", ". ", "; ", "! ", "-", " — ", "\n"]),
        );
    }
    text.push_str(random.word(&["\n", "\n\n", "\r\n", " ", ""]));
}

fn code(random: &mut Random, text: &mut String) {
    let parts: Vec<&str> = IDENTIFIERS.split_whitespace().collect();
    for _ in 0..random.below(12) {
        let unit = random.word(&["    ", "\t", "  "]);
        text.push_str(&unit.repeat(random.index(5)));
        for _ in 0..random.below(10) {
            text.push_str(random.word(&parts));
            text.push_str(random.word(&["", " ", " ", "(", "\"s\"", "'", ".", "_"]));
        }
        text.push_str(random.word(&["\n", "\n", "\r\n", ";\n", " {\n\n", "  \n"]));
    }
}

fn script(random: &mut Random, text: &mut String) {
    let words: Vec<&str> = random.word(&SCRIPTS).split_whitespace().collect();
    for _ in 0..random.below(40) {
        text.push_str(random.word(&words));
        text.push_str(random.word(&["", "", " ", "、", "12", "x", "\n"]));
    }
}

fn emoji(random: &mut Random, text: &mut String) {
    for _ in 0..random.below(10) {
        text.push_str(random.word(&EMOJI));
        text.push_str(random.word(&["", " ", "a", "!", "\u{200d}", "\u{fe0f}"]));
    }
}

fn numbers(random: &mut Random, text: &mut String) {
    for _ in 0..random.below(8) {
        for _ in 0..=random.below(12) {
            text.push(*random.pick(&['0', '1', '2', '3', '7', '9', '٣', '½', '²', 'Ⅷ', '५']));
        }
        text.push_str(random.word(&[" ", ".", ",", "-", "%", "px", "\n", "你"]));
    }
}

fn white_space(random: &mut Random, text: &mut String) {
    for _ in 0..random.below(10) {
        text.push_str(random.word(&SPACES));
    }
    text.push_str(random.word(&["", "a", ".", "7", "あ", "\u{301}", "\u{200b}"]));
}

fn marked_up(random: &mut Random, text: &mut String) {
    for _ in 0..random.below(8) {
        text.push_str(random.word(&MARKED_UP));
        text.push_str(random.word(&["", " ", "text", "\n"]));
    }
}

/// Long runs without a break.
fn joined(random: &mut Random, text: &mut String) {
    let unit =
        random.word(&["a", "=", "-", "ab", "你好", "//", "\u{301}", "ー", "Aa1", "é", "0", "\\n"]);
    text.push_str(&unit.repeat(random.index(200)));
}

/// Characters from anywhere in Unicode, unassigned ones too.
fn anything(random: &mut Random, text: &mut String) {
    let blocks: [(u64, u64); 12] = [
        (0, 0x20),
        (0x20, 0x80),
        (0x80, 0x250),
        (0x2B0, 0x370),
        (0x900, 0xE00),
        (0x1100, 0x1200),
        (0x2000, 0x2070),
        (0x2100, 0x2C00),
        (0x3000, 0x3400),
        (0x4E00, 0xA000),
        (0xD000, 0x11_0000),
        (0, 0x3_0000),
    ];
    let &(first, end) = random.pick(&blocks);
    for _ in 0..random.below(60) {
        let point = first + random.below(end - first);
        if let Some(symbol) = u32::try_from(point).ok().and_then(char::from_u32) {
            text.push(symbol);
        }
        if random.below(4) == 0 {
            text.push_str(random.word(&["a", " ", "\u{300}", "1", ".", "字"]));
        }
    }
}

/// SplitMix64.
pub struct Random(u64);

impl Random {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xD134_2543_DE82_EF95))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// An index below `bound`.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("bound was a usize")
    }

    /// One of several texts.
    pub fn word<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.index(from.len())]
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }
}
