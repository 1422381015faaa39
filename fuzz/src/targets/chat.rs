//! Prompts: any conversation, rendered for any release.

use super::text::small;
use super::{Target, signature};
use ironstar_text::Segment;
use ironstar_text::chat::{
    Assistant, Conversation, Effort, End, Message, Release, RenderOptions, Task, Thinking, Tool,
    ToolCall, ToolChoice, ToolResult, render,
};

/// Three bytes of options, then records: a byte for the kind, text, and [`RECORD_END`].
pub const RENDER: Target = Target {
    name: "chat-render",
    seeds: conversations,
    dictionary: &[
        &[RECORD_END],
        &[FIELD_END],
        "<\u{ff5c}User\u{ff5c}>".as_bytes(),
        "<\u{ff5c}Assistant\u{ff5c}>".as_bytes(),
        "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>".as_bytes(),
        "<\u{ff5c}DSML\u{ff5c}invoke name=\"".as_bytes(),
        "</\u{ff5c}DSML\u{ff5c}function_calls>".as_bytes(),
        b"<think>",
        b"</think>",
        b"{\"name\":\"f\",\"parameters\":{}}",
        b"{\"a\":1e999,\"b\":[null]}",
        b"[[[[[[[[[[[[[[[[",
        b"\\ud800",
    ],
    len_max: 4096,
    base_bytes: 2 << 20,
    bytes_per_byte: 600,
    run,
};

const RECORD_END: u8 = 0x1e;
const FIELD_END: u8 = 0x1f;

fn conversations() -> Vec<Vec<u8>> {
    let body = "s\u{1}You are brief.\u{1e}uHow warm is it in K\u{f6}ln?\u{1e}\
                aI shall look.\u{1f}Think first.\u{1f}\
                weather\u{1f}{\"city\": \"K\u{f6}ln\", \"n\": 1.0}\u{1e}\
                tcall_1\u{1f}18 degrees\u{1e}aIt is 18 degrees.\u{1e}rBe kind.\u{1e}uThanks!\u{1e}\
                f{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"description\":\"d\",\
                \"parameters\":{\"type\":\"object\",\"properties\":{\"city\":\
                {\"type\":\"string\"}}}}}\u{1e}";
    let seed = |options: [u8; 3]| options.iter().chain(body.as_bytes()).copied().collect();
    [[0, 0, 0], [1, 1, 0], [2, 2, 0], [0, 3, 1], [1, 0, 2], [2, 0, 9]].map(seed).to_vec()
}

fn options([release, thinking, end]: [u8; 3]) -> (RenderOptions, ToolChoice) {
    let release = [Release::April, Release::V0731, Release::V41][usize::from(release % 3)];
    let efforts = [Effort::Low, Effort::High, Effort::Max];
    let thinking = match thinking % 4 {
        0 => Thinking::Off,
        effort => Thinking::On(efforts[usize::from(effort - 1)]),
    };
    let tasks =
        [Task::Action, Task::Query, Task::Authority, Task::Domain, Task::Title, Task::ReadUrl];
    let choice =
        [ToolChoice::Auto, ToolChoice::None, ToolChoice::Required][usize::from(end / 16 % 3)];
    let end = match end % 16 {
        0 | 8..=15 => End::Answer,
        1 => End::ContinueLast,
        task => End::Task(tasks[usize::from(task - 2)]),
    };
    (RenderOptions { release, thinking, end }, choice)
}

/// Adds one record; kinds that are not known are the user's.
fn add(conversation: &mut Conversation, record: &[u8]) {
    let Some((kind, text)) = record.split_first() else { return };
    let text = String::from_utf8_lossy(text).into_owned();
    let mut fields = text.split(char::from(FIELD_END)).map(str::to_string);
    let mut field = || fields.next().unwrap_or_default();
    let message = match kind {
        b's' => Message::System(text),
        b'd' => Message::Developer(text),
        b'r' => Message::LatestReminder(text),
        b't' => Message::Tool(ToolResult { call_id: field(), text: field() }),
        b'a' => {
            let content = field();
            let reasoning = Some(field()).filter(|reasoning| !reasoning.is_empty());
            let mut calls = Vec::new();
            while let Some(name) = fields.next() {
                let arguments = fields.next().unwrap_or_default();
                calls.push(ToolCall { id: format!("call_{}", calls.len() + 1), name, arguments });
            }
            Message::Assistant(Assistant { reasoning, content, calls })
        }
        b'f' => {
            conversation.tools.extend(Tool::from_json(&text).ok());
            return;
        }
        _ => Message::User(text),
    };
    conversation.messages.push(message);
}

fn run(bytes: &[u8]) -> u64 {
    let Some((first, rest)) = bytes.split_first_chunk::<3>() else { return 0 };
    let (options, tool_choice) = options(*first);
    let mut conversation = Conversation { tool_choice, ..Conversation::default() };
    rest.split(|&byte| byte == RECORD_END).for_each(|record| add(&mut conversation, record));
    let segments = match render(&conversation, &options) {
        Ok(segments) => segments,
        Err(error) => return signature(&error.to_string()),
    };
    let written: String = segments.iter().map(Segment::as_str).collect();
    let ids = small().encode_segments(&segments).expect("the seed has every marker");
    assert_eq!(small().decode(&ids), written.as_bytes(), "the ids say something else");
    let markers = segments.iter().filter_map(|segment| match segment {
        Segment::Special(text) => small().special(text),
        Segment::Text(_) => None,
    });
    let control = ids.iter().copied().filter(|&id| small().is_control(id));
    assert!(control.eq(markers.clone()), "a control token came from a text");
    markers.fold(1, |seen: u64, id| seen.wrapping_mul(31).wrapping_add(id.into()))
}
