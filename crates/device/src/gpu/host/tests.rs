use super::super::arguments::TWINS;
use super::*;

/// Kernels with one fault each, and one without.
const PLANTED: &str = r"
struct PlantedArgs { uint n; uint pad; };
KERNEL(sound)(IN(float, x, 0), OUT(float, y, 1), ARGS(PlantedArgs, a, 2) GRID_ARGS)
{
    SHARED(float, all, 64);
    all[tid] = x[tgid.x * ntid + tid];
    TG_BARRIER();
    float v = (float)all[63u - tid];
    v += simd_shuffle_xor(v, 1u);
    y[tgid.x * ntid + tid] = v;
}
KERNEL(one_thread_at_a_barrier)(OUT(float, y, 0), ARGS(PlantedArgs, a, 1) GRID_ARGS)
{
    if (tid == 3u) TG_BARRIER();
    y[tid] = 1.0f;
}
KERNEL(two_barriers)(OUT(float, y, 0), ARGS(PlantedArgs, a, 1) GRID_ARGS)
{
    if (sgid == 0u) {
        TG_BARRIER();
    } else {
        TG_BARRIER();
    }
    y[tid] = 1.0f;
}
KERNEL(half_a_simdgroup)(OUT(float, y, 0), ARGS(PlantedArgs, a, 1) GRID_ARGS)
{
    float v = 1.0f;
    if (lane < 16u) v += simd_shuffle_xor(v, 1u);
    y[tid] = v;
}
KERNEL(two_shuffles)(OUT(float, y, 0), ARGS(PlantedArgs, a, 1) GRID_ARGS)
{
    float v = 1.0f;
    if (lane < 16u) {
        v += simd_shuffle_xor(v, 1u);
    } else {
        v += simd_shuffle_xor(v, 2u);
    }
    y[tid] = v;
}
KERNEL(no_barrier)(OUT(float, y, 0), ARGS(PlantedArgs, a, 1) GRID_ARGS)
{
    SHARED(float, all, 64);
    all[tid] = 1.0f; TG_BARRIER();
    all[tid] = 2.0f; y[tid] = all[63u - tid];
}
KERNEL(two_writers)(OUT(float, y, 0), ARGS(PlantedArgs, a, 1) GRID_ARGS)
{
    SHARED(float, all, 64);
    all[tid / 2u] = (float)tid;
    TG_BARRIER();
    y[tid] = all[tid / 2u];
}
KERNEL(write_after_read)(OUT(float, y, 0), ARGS(PlantedArgs, a, 1) GRID_ARGS)
{
    SHARED(float, all, 64);
    all[tid] = 1.0f;
    TG_BARRIER();
    float v = all[(tid + 1u) & 63u];
    all[tid] = v;
    y[tid] = v;
}
KERNEL(never_written)(OUT(float, y, 0), ARGS(PlantedArgs, a, 1) GRID_ARGS)
{
    SHARED(float, all, 64);
    if (tid != 5u) all[tid] = 1.0f;
    TG_BARRIER();
    y[tid] = all[tid];
}
KERNEL(beyond_shared)(OUT(float, y, 0), ARGS(PlantedArgs, a, 1) GRID_ARGS)
{
    SHARED(float, all, 63);
    all[tid] = 1.0f;
    y[tid] = 1.0f;
}
KERNEL(far_beyond)(OUT(float, y, 0), ARGS(PlantedArgs, a, 1) GRID_ARGS) { y[tid + a.n] = 1.0f; }
KERNEL(reads_beyond)(IN(float, x, 0), OUT(float, y, 1), ARGS(PlantedArgs, a, 2) GRID_ARGS)
{
    y[tid] = x[tid + a.n];
}
KERNEL(half_a_box)(OUT(float, y, 0), ARGS(PlantedArgs, a, 1) GRID_ARGS)
{
    SHARED(float, all, 2);
    BOX(box, 0u);
    if (tid == 0u) BOX_OPEN(box, 8u);
    BOXES_OPEN();
    BOXES_KNOWN();
    if (tid == 0u) cluster_put(all, 0u, 0u, 1.0f, box);
    BOX_WAIT(box);
    y[tid] = all[0];
}
KERNEL(no_box)(OUT(float, y, 0), ARGS(PlantedArgs, a, 1) GRID_ARGS)
{
    SHARED(float, all, 2);
    cluster_put(all, 0u, 1u, 1.0f, 0u);
    y[tid] = 1.0f;
}
KERNEL(before_the_box)(OUT(float, y, 0), ARGS(PlantedArgs, a, 1) GRID_ARGS)
{
    SHARED(float, all, 1);
    BOX(box, 0u);
    if (tid == 0u) BOX_OPEN(box, 4u);
    BOXES_OPEN();
    BOXES_KNOWN();
    if (tid == 0u) cluster_put(all, 0u, 0u, 1.0f, box);
    y[tid] = all[0];
    BOX_WAIT(box);
}
";

const THREADS: u32 = 64;

fn planted() -> Host {
    Host::with(PLANTED).unwrap_or_else(|error| panic!("{error}"))
}

/// Launches a kernel over so many buffers of 64 floats.
fn run(host: &mut Host, name: &'static str, buffers: usize, n: u32) -> Result<Vec<f32>, Error> {
    let kernel = host.kernel(name)?;
    let bytes = 4 * THREADS as usize;
    let mut places = Vec::new();
    for _ in 0..buffers {
        places.push(host.alloc(bytes as u64)?);
    }
    let x: Vec<u8> = (0..64u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
    host.upload(places[0], &x)?;
    let arguments = [n.to_le_bytes(), [0; 4]].concat();
    host.launch(kernel, [1, 1, 1], THREADS, &places, &arguments)?;
    let mut out = vec![0u8; bytes];
    host.download(places[buffers - 1], &mut out)?;
    Ok(out.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

#[test]
fn a_sound_kernel_runs() {
    let out = run(&mut planted(), "sound", 2, 0).expect("no fault in it");
    let wanted: Vec<f32> = (0..64u8).map(|i| f32::from(63 - i) + f32::from(63 - (i ^ 1))).collect();
    assert_eq!(out, wanted);
}

/// Every planted fault is found, and the message says where and what; the driver works on.
#[test]
fn planted_faults_are_found() {
    let mut host = planted();
    let cases = [
        ("one_thread_at_a_barrier", 0, "a barrier (line 14) is reached by 1 of 64 threads"),
        ("two_barriers", 0, "a barrier is reached at two places (lines 20 and 22)"),
        ("half_a_simdgroup", 0, "reached by 16 of 32 lanes"),
        ("two_shuffles", 0, "a simdgroup operation is reached at two places (lines 36 and 38)"),
        ("no_barrier", 0, "race: thread 32 writes element 32"),
        ("two_writers", 0, "race: threads 1 and 0 write element 0"),
        ("write_after_read", 0, "that another has read since the last barrier"),
        ("never_written", 0, "thread 5 reads element 5 of shared memory that nobody has written"),
        ("beyond_shared", 0, "element 63 of a shared array of 63"),
        ("half_a_box", 0, "a box never gets all that it was opened for"),
        ("no_box", 0, "element 0 is put to group 1 of a cluster, which has not opened that box"),
        ("before_the_box", 0, "thread 0 reads element 0 of shared memory that nobody has written"),
        ("far_beyond", 1 << 10, "outside of every buffer"),
        // Inside the rounding of an allocation: the marks tell.
        ("far_beyond", 1 << 0, "wrote outside of the buffer of 252 bytes"),
    ];
    for (name, n, words) in cases {
        let result = match n {
            1 => beyond_a_little(&mut host),
            _ => run(&mut host, name, 1, n).map(|_| ()),
        };
        let Err(error) = result else { panic!("{name} is not found out") };
        let text = error.to_string();
        assert!(text.contains(words), "{name}: {text}");
        if n != 1 {
            assert!(text.contains(name), "{name}: {text}");
        }
    }
    let mut host = planted();
    let Err(error) = run(&mut host, "reads_beyond", 2, 1 << 10) else { panic!("not found out") };
    assert!(error.to_string().contains("outside of every buffer"), "{error}");
    run(&mut host, "sound", 2, 0).expect("works on");
}

/// A kernel writes one float behind 63.
fn beyond_a_little(host: &mut Host) -> Result<(), Error> {
    let kernel = host.kernel("far_beyond")?;
    let place = host.alloc(252)?;
    host.launch(kernel, [1, 1, 1], THREADS, &[place], &[0; 8])?;
    host.finish()
}

/// The structs of both sides have equal sizes; a struct with another size does not compile.
#[test]
fn argument_structs_are_twins() {
    let assertion = |(name, size): &(&str, usize)| {
        format!("static_assert(sizeof({name}) == {size}, \"{name}\");\n")
    };
    let all: String = TWINS.iter().map(assertion).collect();
    Host::with(&all).unwrap_or_else(|error| panic!("{error}"));
    let wrong = "static_assert(sizeof(RmsArgs) == 4, \"RmsArgs\");\n";
    let Err(error) = Host::with(wrong) else { panic!("a wrong size compiles") };
    assert!(error.to_string().contains("RmsArgs"), "{error}");
    // Every struct of arguments of the text has a twin.
    let text = text::host("");
    for line in text.lines().filter(|line| line.starts_with("struct ") && line.contains("Args")) {
        let name = line.split_whitespace().nth(1).expect("a name");
        assert!(TWINS.iter().any(|(own, _)| *own == name), "{name} has no twin");
    }
}

#[test]
fn misuse_is_refused() {
    let mut host = planted();
    let place = host.alloc(8).expect("small");
    assert!(host.upload(place.offset(4), &[0; 8]).is_err(), "beyond an allocation");
    assert!(host.download(Address(64), &mut [0]).is_err(), "no allocation");
    assert!(host.kernel("no_such_kernel").is_err());
    let kernel = host.kernel("sound").expect("it is there");
    assert!(host.launch(kernel, [1, 1, 1], 33, &[place], &[]).is_err(), "half a simdgroup");
    assert!(host.launch(kernel, [0, 1, 1], 32, &[place], &[]).is_err(), "no groups");
    assert!(host.launch(Kernel(999), [1, 1, 1], 32, &[place], &[]).is_err(), "no such kernel");
    assert!(matches!(host.alloc(u64::MAX), Err(Error::Memory { .. })));
}
