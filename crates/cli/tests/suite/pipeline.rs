//! Nodes that each have some of a model's layers: the answer of one process, whatever started them,
//! and what happens when one is killed or its cable is cut.

use crate::common::{failure, folder, ironstar, text};
use crate::ranks::{ASK, STORY, Serving, story};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

/// A port that nobody listens at, and that the system gives to nobody who wants any.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 9000).expect("a small number");
    loop {
        let port = 20_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

#[test]
fn nodes_answer_as_one_process_does() {
    let one = story(&["--speculate", "off"]);
    assert_eq!(story(&["--stages", "2"]), one, "two over shared memory");
    let three = ["--layers", "0,1-2,3-7", "--transport", "tcp", "--speculate", "mtp"];
    let layers = layers();
    let cut = format!("0,1-2,3-{}", layers - 1);
    let three: Vec<&str> =
        three.iter().map(|word| if word.starts_with("0,") { &cut } else { *word }).collect();
    assert_eq!(story(&three), one, "three over TCP that guess");
}

/// How many layers the bundled model has.
fn layers() -> usize {
    let shown = text(&["inspect", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    let count = shown["shape"]["deepseek4.block_count"].as_u64().expect("a number of layers");
    usize::try_from(count).expect("few layers")
}

#[test]
fn a_plan_shows_nodes_and_cuts_that_cannot_be_are_told() {
    let shown = text(&["inspect", "--stages", "2"]);
    for words in ["Weights on node 0: layers 0 to", "Weights on node 1: layers", "output head"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    for (flag, value, reason) in [
        ("--layers", "0-2,4-5", "begins with layer 3"),
        ("--layers", "0,1", "the model has layers 0 to"),
        ("--stages", "90", "the model has"),
        ("--stages", "1", "2 or more"),
    ] {
        let (code, errors) = failure(&["run", "-p", "x", flag, value]);
        assert!(code == 2 && errors.contains(reason), "{value}: {code} {errors}");
    }
}

/// A node that `ironstar worker` is, or whatever else the words say.
struct Node(Child, BufReader<ChildStderr>);

impl Node {
    fn start(mut command: Command) -> Node {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary was built for this test");
        let errors = BufReader::new(child.stderr.take().expect("piped"));
        Node(child, errors)
    }

    /// Waits until it says this.
    fn hears(&mut self, words: &str) {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert!(self.1.read_line(&mut line).expect("text") > 0, "it ended");
        }
    }

    fn kill(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it has ended");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _gone = self.0.wait();
    }
}

#[test]
fn a_file_describes_the_group_to_all_of_it() {
    let (folder, port) = (folder("cluster-file"), free_port());
    let path = folder.join("cluster.json");
    let cut = format!("1-{}", layers() - 1);
    let file = serde_json::json!({
        "mode": "pipeline",
        "listen": format!("127.0.0.1:{port}"),
        "key_file": "key",
        "ranks": [{"layers": "0"}, {"address": "127.0.0.1", "layers": cut}],
    });
    std::fs::write(&path, file.to_string()).expect("a file");
    std::fs::write(folder.join("key"), "5".repeat(64)).expect("a file");
    let path = path.to_str().expect("text");
    let mut worker = ironstar(&["worker", "--cluster", path, "--rank", "1", "--threads", "1"]);
    let worker = worker.stderr(Stdio::piped()).spawn().expect("the binary");
    assert_eq!(story(&["--cluster", path]), story(&[]));
    let ended = worker.wait_with_output().expect("it ends when rank 0 does");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && told.contains("has layers 1 to"), "{told}");
}

/// The same command line in every process, as torchrun starts them: one answers, one follows.
#[test]
fn launched_processes_find_each_other() {
    let port = free_port().to_string();
    let launched = |rank: &str, more: &[&str]| {
        let mut command = ironstar(&[&ASK[..], &["--ranks", "auto"], more].concat());
        command.env("RANK", rank).env("WORLD_SIZE", "2");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the binary")
    };
    for more in [&[][..], &["--stages", "2"]] {
        let (other, first) = (launched("1", more), launched("0", more));
        let first = first.wait_with_output().expect("it ends");
        let other = other.wait_with_output().expect("it ends");
        let told = String::from_utf8_lossy(&first.stderr);
        assert!(first.status.success() && other.status.success(), "{told}");
        assert_eq!(String::from_utf8_lossy(&first.stdout), story(&[]), "{more:?}");
        assert!(other.stdout.is_empty(), "only rank 0 answers");
    }
    let (code, errors) = failure(&["run", "-p", "x", "--ranks", "auto"]);
    assert!(code == 2 && errors.contains("no launcher"), "{code} {errors}");
    let (code, errors) = failure(&["worker"]);
    assert!(code == 2 && errors.contains("--join HOST:PORT"), "{code} {errors}");
}

/// The second of two questions on one session goes on from what is stored, or reads again: the rows
/// of the node that was killed are gone, and rank 0 is not.
#[cfg(target_os = "linux")]
#[test]
fn a_killed_node_is_started_again_and_the_next_request_is_answered() {
    let mut serving = Serving::start(&["serve", "--port", "0", "--stages", "3", "--threads", "3"]);
    let (status, text) = serving.ask(STORY);
    assert!(status.contains("200") && text.len() > 5, "{status} {text}");
    serving.lose_a_rank();
    assert_eq!(serving.ask(STORY), (status, text), "the same answer, without a restart of rank 0");
}

/// Machines that are network namespaces, each with a cable to the first, which has a bridge; or
/// this machine, where this user may make none.
struct Machines(Vec<String>);

impl Machines {
    fn make(count: usize) -> Option<Machines> {
        let names = (0..count).map(|at| format!("is-{}-{count}{at}", std::process::id())).collect();
        let machines = Machines(names);
        let first = &machines.0[0];
        if !ip(&format!("netns add {first}")) {
            return None;
        }
        let mut words = vec![
            format!("-n {first} link set lo up"),
            format!("-n {first} link add hub type bridge"),
            format!("-n {first} addr add 10.78.0.1/24 dev hub"),
            format!("-n {first} link set hub up"),
        ];
        for (at, name) in machines.0.iter().enumerate().skip(1) {
            let cable = Machines::cable(at);
            words.extend([
                format!("netns add {name}"),
                format!("link add {cable} netns {first} type veth peer name eth netns {name}"),
                format!("-n {first} link set {cable} master hub up"),
                format!("-n {name} addr add 10.78.0.{}/24 dev eth", at + 1),
                format!("-n {name} link set eth up"),
                format!("-n {name} link set lo up"),
            ]);
        }
        // Whoever may make one namespace may do the rest: what fails here is missing.
        for words in words {
            assert!(ip(&words), "`ip {words}` failed, though `ip netns add` works for this user");
        }
        Some(machines)
    }

    /// The end of a machine's cable at the first.
    fn cable(at: usize) -> String {
        format!("v{at}")
    }

    /// The binary on a machine.
    fn run(&self, at: usize, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[at], env!("CARGO_BIN_EXE_ironstar")]).args(words);
        command.stdin(Stdio::null());
        command
    }

    fn set_cable(&self, at: usize, state: &str) {
        let words = format!("-n {} link set {} {state}", self.0[0], Machines::cable(at));
        assert!(ip(&words), "ip {words}");
    }

    /// Status line and text of a completion by the server at `port` of the first machine.
    fn ask(&self, port: u16) -> (String, String) {
        let body = r#"{"prompt":"Once upon a time","max_tokens":12,"temperature":0}"#;
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; cat >&3; cat <&3");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[0], "bash", "-c", &script]);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = command.spawn().expect("a shell");
        let mut input = client.stdin.take().expect("piped");
        input.write_all(head.as_bytes()).expect("it reads");
        drop(input);
        let answer = client.wait_with_output().expect("it ends");
        let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, "null"));
        let body: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
        let text = body["choices"][0]["text"].as_str().or(body["error"]["message"].as_str());
        let status = head.lines().next().unwrap_or_default().to_owned();
        (status, text.unwrap_or_default().to_owned())
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in &self.0 {
            // What is left of it goes with the machine.
            let _deleted = ip(&format!("netns delete {name}"));
        }
    }
}

fn ip(words: &str) -> bool {
    let command = Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status();
    command.is_ok_and(|status| status.success())
}

/// Nodes on machines of their own: the answer of one process; a cut cable and a killed node fail a
/// request with a reason or are not seen by it, no answer is ever another one, and rank 0 serves
/// again without a restart when the node is back.
#[cfg(target_os = "linux")]
#[test]
#[allow(clippy::print_stdout, reason = "whether it ran")]
fn nodes_on_other_machines_answer_and_come_back() {
    let folder = folder("pipeline-machines");
    let key = folder.join("key");
    std::fs::write(&key, "6".repeat(64)).expect("a file");
    let key = key.to_str().expect("text").to_owned();
    let wanted = Serving::start(&["serve", "--port", "0"]).ask(STORY);
    for nodes in [2, 3] {
        let Some(machines) = Machines::make(nodes) else {
            println!("not run: this user may make no network namespaces");
            return;
        };
        let join =
            ["worker", "--join", "10.78.0.1:7000", "--rank-key-file", &key, "--threads", "1"];
        let worker = |at: usize| {
            let rank = at.to_string();
            Node::start(machines.run(at, &[&join[..], &["--rank", &rank]].concat()))
        };
        let mut others: Vec<Node> = (1..nodes).map(worker).collect();
        let stages = nodes.to_string();
        let serve = ["serve", "--port", "0", "--stages", &stages, "--threads", "1"];
        let listen = ["--listen", "10.78.0.1:7000", "--rank-key-file", &key];
        let serving = Serving::of(machines.run(0, &[&serve[..], &listen].concat()));
        let port = serving.1.rsplit(':').next().and_then(|port| port.parse().ok());
        let port: u16 = port.expect("a port");
        assert_eq!(machines.ask(port), wanted, "{nodes} nodes");
        // The cable of the last node is cut, and comes back when that is noticed. What is asked
        // meanwhile waits for it, or fails with the reason.
        let last = nodes - 1;
        machines.set_cable(last, "down");
        let during = std::thread::scope(|scope| {
            let asking = scope.spawn(|| machines.ask(port));
            others[last - 1].hears("the group broke");
            machines.set_cable(last, "up");
            asking.join().expect("the client ends")
        });
        let (status, reason) = &during;
        let is_told = status.contains(" 50") && reason.contains("rank");
        assert!(during == wanted || is_told, "{during:?}");
        assert_eq!(machines.ask(port), wanted, "{nodes} nodes, after the cable is back");
        others[last - 1].kill();
        others[last - 1] = worker(last);
        assert_eq!(machines.ask(port), wanted, "{nodes} nodes, one of them another process");
    }
}
