//! Several processes on one model: the answer of one, whatever carries their gates, and what
//! happens when a rank is killed.

use crate::common::{failure, ironstar, text};
use crate::provider::provider;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

pub const ASK: [&str; 9] =
    ["run", "-p", "Tell me a short story.", "--seed", "7", "-n", "24", "--threads", "2"];

pub fn story(more: &[&str]) -> String {
    text(&ASK.iter().chain(more).copied().collect::<Vec<_>>())
}

#[test]
fn ranks_answer_as_one_process_does() {
    let one = story(&["--speculate", "off"]);
    assert_eq!(story(&["--ranks", "2"]), one, "two over shared memory");
    assert_eq!(story(&["--ranks", "2", "--transport", "tcp"]), one, "two over TCP");
    assert_eq!(story(&["--ranks", "4", "--speculate", "mtp"]), one, "four that guess");
    for (ranks, words) in [("2", ""), ("4", ""), ("2", "apple,scribble")] {
        let fake = provider(words);
        let fake = fake.to_str().expect("a path of ours");
        let verbs = ["--ranks", ranks, "--transport", "verbs", "--rdma-library", fake];
        assert_eq!(story(&verbs), one, "{ranks} over RDMA, fake provider `{words}`");
    }
}

#[test]
fn rdma_that_is_not_there_is_told_with_what_to_do() {
    let words = ["run", "-p", "x", "--ranks", "2", "--transport", "verbs", "--rdma-library"];
    let (code, errors) = failure(&[&words[..], &["/nowhere/libibverbs.so.1"]].concat());
    assert!(code == 1 && errors.contains("/nowhere/"), "{code} {errors}");
    assert!(errors.contains("choose another transport"), "{errors}");
}

#[test]
fn rank_counts_that_cannot_be_are_told_before_anything_starts() {
    for (ranks, reason) in [("8", "output groups"), ("3", "1, 2, 4 or 8"), ("0", "1, 2, 4 or 8")] {
        let (code, errors) = failure(&["run", "-p", "x", "--ranks", ranks]);
        assert!(code == 2 && errors.contains(reason), "{ranks}: {code} {errors}");
    }
    let shown = text(&["inspect", "--ranks", "4"]);
    assert!(shown.contains("Weights on each of 4 ranks"), "{shown}");
}

#[test]
fn what_only_cards_can_do_is_told() {
    for more in [["--ranks", "2"], ["--stages", "2"]] {
        let words = ["run", "-p", "x", "--backend", "cpu", "--transport", "peer"];
        let (code, errors) = failure(&[&words[..], &more].concat());
        assert!(code == 2 && errors.contains("--backend cuda"), "{code} {errors}");
    }
    let (code, errors) = failure(&["run", "-p", "x", "--ranks", "2", "--transport", "pigeon"]);
    assert!(code == 2 && errors.contains("or peer"), "{code} {errors}");
}

#[test]
fn a_rank_that_people_start_joins() {
    let words: Vec<&str> =
        ASK.iter().copied().chain(["--ranks", "2", "--listen", "127.0.0.1:0"]).collect();
    let leader = ironstar(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut leader = leader.expect("the binary was built for this test");
    let mut errors = BufReader::new(leader.stderr.take().expect("piped"));
    let mut line = String::new();
    errors.read_line(&mut line).expect("text");
    let address = line.trim().rsplit(' ').next().expect("it says where it waits").to_owned();
    let worker = ironstar(&["worker", "--join", &address, "--threads", "1"]).output();
    let worker = worker.expect("the binary was built for this test");
    let told = String::from_utf8_lossy(&worker.stderr);
    let answer = leader.wait_with_output().expect("it ends");
    let mut rest = String::new();
    errors.read_to_string(&mut rest).expect("text");
    assert!(answer.status.success(), "{line}{rest}{told}");
    assert!(worker.status.success(), "it ends when rank 0 does: {told}");
    assert_eq!(String::from_utf8_lossy(&answer.stdout), story(&[]));
}

/// What a server is asked to go on with.
pub const STORY: &str = "Once upon a time";

/// A server, its address, and what it says on standard error.
pub struct Serving(pub Child, pub String, pub BufReader<ChildStderr>);

impl Serving {
    pub fn start(words: &[&str]) -> Serving {
        Serving::of(ironstar(words))
    }

    /// A server that a command starts.
    pub fn of(mut command: Command) -> Serving {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the binary");
        let mut errors = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        while !line.contains("http://") {
            line.clear();
            assert!(errors.read_line(&mut line).expect("text") > 0, "it ended");
        }
        let address = line.trim().rsplit("http://").next().expect("an address").to_owned();
        Serving(child, address, errors)
    }

    /// Status line and text of an answer.
    pub fn ask(&self, prompt: &str) -> (String, String) {
        let body = format!(r#"{{"prompt":"{prompt}","max_tokens":12,"temperature":0}}"#);
        let mut stream = TcpStream::connect(&self.1).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a socket");
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.1,
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        stream.write_all(body.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
        let text = body["choices"][0]["text"].as_str().unwrap_or_default();
        (head.lines().next().unwrap_or_default().to_owned(), text.to_owned())
    }

    /// How many TCP sockets of its process listen.
    #[cfg(target_os = "linux")]
    fn listeners(&self) -> usize {
        let process = format!("/proc/{}", self.0.id());
        let open: Vec<String> = std::fs::read_dir(format!("{process}/fd"))
            .expect("Linux")
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .map(|target| target.to_string_lossy().into_owned())
            .collect();
        let table = std::fs::read_to_string(format!("{process}/net/tcp")).expect("Linux");
        let listening = table.lines().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words.get(3) == Some(&"0A")).then(|| format!("socket:[{}]", words[9]))
        });
        listening.filter(|socket| open.contains(socket)).count()
    }

    /// Kills one of its other ranks and waits until it was started again; which process it was.
    pub fn lose_a_rank(&mut self) -> u32 {
        let victim = self.other_rank();
        let killed = Command::new("kill").args(["-9", &victim.to_string()]).status();
        assert!(killed.expect("kill is there").success());
        let mut line = String::new();
        while !line.contains("was started again") {
            line.clear();
            assert!(self.2.read_line(&mut line).expect("text") > 0, "it ended");
        }
        victim
    }

    /// Process of one of its other ranks.
    pub fn other_rank(&self) -> u32 {
        let id = self.0.id();
        let path = format!("/proc/{id}/task");
        let tasks = std::fs::read_dir(path).expect("Linux");
        let children = tasks
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let all: String = children.collect();
        all.split_whitespace().next().and_then(|id| id.parse().ok()).expect("it has one")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _gone = self.0.wait();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_rank_is_started_again_and_the_next_request_is_answered() {
    let mut serving = Serving::start(&["serve", "--port", "0", "--ranks", "2", "--threads", "2"]);
    let (status, text) = serving.ask(STORY);
    assert!(status.contains("200") && text.len() > 5, "{status} {text}");
    let victim = serving.lose_a_rank();
    assert_eq!(serving.ask(STORY), (status, text), "the same answer, without a restart of rank 0");
    assert_ne!(serving.other_rank(), victim);
}

#[cfg(target_os = "linux")]
#[test]
fn sessions_at_once_share_the_listener_and_the_ranks() {
    let words = ["serve", "--port", "0", "--ranks", "2", "--transport", "tcp", "--threads", "2"];
    let serving = Serving::start(&words);
    let prompts = [STORY, "The cat sat on", "In the morning the", "Two plus two is"];
    let alone = prompts.map(|prompt| serving.ask(prompt));
    assert!(alone.iter().all(|(status, text)| status.contains("200") && !text.is_empty()));
    let listeners = serving.listeners();
    assert!(listeners > 0, "the sockets were looked for in the right place");
    let together = std::thread::scope(|scope| {
        let asking = prompts.map(|prompt| scope.spawn(|| serving.ask(prompt)));
        asking.map(|thread| thread.join().expect("no panic"))
    });
    assert_eq!(together, alone, "answers do not depend on their neighbours");
    assert_eq!(serving.listeners(), listeners, "no session opens a listener of its own");
}
