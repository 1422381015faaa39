//! Programmatic edges: a kernel is set up while the one before still runs, and waits for its end as
//! the first thing it does (compute capability 9.0 and later).
//!
//! A kernel lets the next one be set up (`GRID_NEXT`) before it waits itself (`GRID_WAIT`): the
//! next one's own wait is for its end, which comes after the end of all before it. It is there
//! only when all groups of this one are, so groups that wait never keep out those that they wait
//! for. Kernels that wait for another card, and those whose successors would only keep others out,
//! let them come later.
//!
//! Invariant: a launch may overlap only if its kernel waits. So the wait is put into every kernel
//! of the text here, and overlap is allowed for a text only if all of its kernels have it. A
//! `KERNEL_EARLY` has its own `GRID_START`, behind its first loads of weights, which no kernel of a
//! step writes.

use super::timeline;

/// What the wait is, and nothing on older cards, which are never asked to overlap.
const DEFINITION: &str = r#"
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define GRID_WAIT asm volatile("griddepcontrol.wait;" ::: "memory");
#define GRID_NEXT asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#else
#define GRID_WAIT
#define GRID_NEXT
#endif
#define GRID_START GRID_NEXT GRID_WAIT
"#;

/// The text with a wait at the start of every kernel; `None` if there is a kernel whose start is
/// not found, or no kernel at all.
pub(super) fn with_waits(text: &str) -> Option<String> {
    with_starts(DEFINITION, text)
}

/// The same, which also leaves when each launch starts.
pub(super) fn with_stamps(text: &str) -> Option<String> {
    with_starts(timeline::DEFINITION, &timeline::with_numbers(text)?)
}

fn with_starts(definition: &str, text: &str) -> Option<String> {
    let mut out = String::from(definition);
    let (mut rest, mut kernels) = (text, 0);
    while let Some(at) = rest.find("KERNEL(") {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let line_start = before.rsplit('\n').next().unwrap_or("");
        if line_start.trim_end().ends_with("#define") {
            let (word, after) = from.split_at("KERNEL(".len());
            out.push_str(word);
            rest = after;
            continue;
        }
        let body = body(from)?;
        out.push_str(&from[..body]);
        out.push_str(" GRID_START ");
        kernels += 1;
        rest = &from[body..];
    }
    out.push_str(rest);
    (kernels > 0).then_some(out)
}

/// Where the body of `KERNEL(name)(parameters) {` begins, behind its brace.
fn body(text: &str) -> Option<usize> {
    let name = closing(text, "KERNEL".len())?;
    let parameters = closing(text, next(text, name, '(')?)?;
    Some(next(text, parameters, '{')? + 1)
}

/// Where the wanted character is, behind nothing but white space and ends of macro lines.
fn next(text: &str, from: usize, wanted: char) -> Option<usize> {
    let rest = text.get(from..)?;
    let at = rest.find(|c: char| !c.is_whitespace() && c != '\\')?;
    rest[at..].starts_with(wanted).then_some(from + at)
}

/// Behind the bracket that closes the one at `open`.
fn closing(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (index, c) in text.get(open..)?.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(open + index + c.len_utf8());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::with_waits;

    #[test]
    fn every_kernel_of_the_text_waits_first() {
        let text = crate::gpu::text::cuda();
        let kernels = text.matches("KERNEL(").count() - text.matches("#define KERNEL(").count();
        let with = with_waits(&text).expect("every kernel's start is found");
        let early = text.matches("KERNEL_EARLY(").count() - 1;
        let own = text.matches("GRID_START").count() + text.matches("GRID_WAIT").count();
        assert!(early > 0 && own > 3, "{early} kernels wait by themselves, at {own} places");
        let given = with.lines().filter(|line| !line.trim_start().starts_with("if ("));
        let given = given.filter(|line| line.contains("{ GRID_START ")).count();
        assert_eq!(given, kernels);
        assert!(kernels > 30, "{kernels}");
    }

    #[test]
    fn a_text_that_is_not_understood_never_overlaps() {
        assert_eq!(with_waits("no kernel at all"), None);
        assert_eq!(with_waits("KERNEL(declared)(int x);"), None);
        assert_eq!(with_waits("KERNEL(open(int x) {"), None);
        let macros = "#define KERNEL(n) void n\n#define M(n) KERNEL(n)(P) \\\n    { f(); }\nM(a)";
        assert!(with_waits(macros).is_some_and(|text| text.contains("{ GRID_START  f(); }")));
    }
}
