use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

impl Dropped {
    /// What is answered to a thread that is not known and asks now.
    fn answer_at_once(&self, of: u64, size: Size, may_be_longer: bool) -> Answering {
        self.answer(of, size, may_be_longer, self.asks(of, 0))
    }
}

/// What is answered to a kernel whose files here nobody writes.
fn answer(dropped: &Dropped, of: u64, bytes: u64) -> Answering {
    let last = dropped.state.lock().nodes.get(&of).and_then(|node| node.last).unwrap_or_default();
    let generation = last.generation + u64::from(bytes < last.bytes);
    dropped.answer_at_once(of, Size { generation, bytes }, false)
}

/// Whether the kernel is shown the size.
fn shows(dropped: &Dropped, of: u64, size: u64) -> bool {
    match answer(dropped, of, size) {
        Answering::Show(drops) => {
            dropped.shown(of, drops);
            true
        }
        Answering::Renew(drops) => {
            dropped.voided(of, Size { generation: 0, bytes: size });
            dropped.shown(of, drops + 1);
            true
        }
        Answering::Plain | Answering::IsOld => false,
    }
}

#[test]
fn an_answer_beside_a_read_that_finds_the_files_end_is_shown() {
    let dropped = Arc::new(Dropped::default());
    assert!(!shows(&dropped, 7, 10));
    let ending = AnsweringEnd::begin(&dropped, 7);
    assert!(!shows(&dropped, 7, 0), "nothing can be shown of an empty file");
    assert!(shows(&dropped, 7, 20) && shows(&dropped, 7, 20), "the read may be answered behind each");
    drop(ending);
    assert!(shows(&dropped, 7, 20), "its answer may not be taken in yet");
    assert!(!shows(&dropped, 7, 20));
    dropped.forget(7);
    drop(AnsweringEnd::begin(&dropped, 7));
    assert_eq!(dropped.state.lock().nodes[&7].ends, 0);
    assert!(shows(&dropped, 7, 30));
}

// SEMANTICS 114.4
#[test]
fn nobody_is_answered_while_the_size_is_still_to_be_shown_to_another() {
    let dropped = Dropped::default();
    dropped.end(7);
    let Answering::Show(first) = answer(&dropped, 7, 10) else { panic!("there was a drop") };
    let Answering::Show(second) = answer(&dropped, 7, 10) else { panic!("the first has not shown it yet") };
    dropped.end(7);
    dropped.shown(7, first);
    dropped.shown(7, second);
    assert!(shows(&dropped, 7, 10), "there was a drop meanwhile");
    assert!(!shows(&dropped, 7, 10));
    dropped.forget(7);
    dropped.shown(7, 5);
    dropped.end(7);
    dropped.shown(7, 5);
    dropped.end(7);
    assert!(shows(&dropped, 7, 10), "what was shown before it was forgotten does not count");
}

#[test]
fn an_answer_is_shown_where_a_drop_may_have_come_before_it_or_behind() {
    let dropped = Dropped::default();
    assert!(!shows(&dropped, 7, 10), "nothing was dropped");
    assert_eq!(dropped.begin(7), Some(10), "it may be on its way");
    dropped.end(7);
    assert_eq!(dropped.begin(7), None, "it was shown");
    assert!(shows(&dropped, 7, 20) && !shows(&dropped, 7, 20));
    dropped.forget_answer(7);
    assert_eq!(dropped.begin(7), None);
    dropped.forget(7);
    assert!(!shows(&dropped, 7, 30));
    let long_ago = Instant::now() - TAKEN_IN;
    dropped.state.lock().nodes.get_mut(&7).unwrap().answered = Some((30, long_ago));
    assert_eq!(dropped.begin(7), None, "it was taken in");
}

// SEMANTICS 114.5
#[test]
fn a_small_file_that_shrinks_is_not_shown() {
    let dropped = Dropped::default();
    let page = rustix::param::page_size() as u64;
    assert!(!shows(&dropped, 7, 10 * page));
    dropped.end(7);
    assert!(shows(&dropped, 7, 9 * page));
    dropped.end(7);
    assert!(!shows(&dropped, 7, 10));
    dropped.end(7);
    assert!(shows(&dropped, 7, 20), "it grows");
    dropped.forget_answer(7);
    dropped.end(7);
    assert!(shows(&dropped, 7, 10), "its kernel knew that it shrinks");
}

// SEMANTICS 114.4
#[test]
fn an_answer_of_before_does_not_count_whether_it_leaves_first_or_last() {
    let size = |generation, bytes| Size { generation, bytes };
    let dropped = Dropped::default();
    assert_eq!(dropped.answer_at_once(7, size(0, 20), false), Answering::Plain);
    dropped.begin(7);
    dropped.end(7);
    assert_eq!(dropped.answer_at_once(7, size(1, 0), false), Answering::Plain, "nothing can be shown of it");
    assert!(matches!(dropped.answer_at_once(7, size(1, 20), true), Answering::Show(_)), "it may be longer");
    let Answering::Renew(drops) = dropped.answer_at_once(7, size(1, 20), false) else {
        panic!("the empty one may count")
    };
    dropped.voided(7, size(1, 20));
    dropped.shown(7, drops + 1);
    assert_eq!(dropped.answer_at_once(7, size(1, 20), false), Answering::Plain);
    assert_eq!(dropped.answer_at_once(7, size(1, 0), false), Answering::IsOld);
    assert_eq!(dropped.answer_at_once(7, size(0, 30), false), Answering::IsOld);
    assert_eq!(dropped.answer_at_once(7, size(2, 0), false), Answering::Plain);
    assert_eq!(dropped.answer_at_once(7, size(2, 10), false), Answering::Plain, "it may be taken for 20");
    dropped.entry(7, 0);
    assert_eq!(dropped.begin(7), Some(10), "an entry is shown before no drop");
    dropped.entry(7, 0);
    dropped.entry(8, 5);
    assert_eq!(dropped.begin(8), None);
    assert!(matches!(dropped.answer_at_once(7, size(2, 40), false), Answering::Renew(_)));
}

#[test]
fn an_answer_of_before_that_is_void_or_taken_in_needs_nothing() {
    let dropped = Dropped::default();
    assert!(!shows(&dropped, 7, 20) && !shows(&dropped, 7, 0));
    dropped.begin(7);
    dropped.end(7);
    assert!(matches!(answer(&dropped, 7, 20), Answering::Show(_)), "the drop has voided it");
    assert_eq!(answer(&dropped, 8, 10), Answering::Plain);
    for node in dropped.state.lock().nodes.values_mut() {
        let long_ago = Instant::now() - TAKEN_IN;
        node.least = node.least.map(|(least, _)| (least, long_ago));
        node.answered = node.answered.map(|(answered, _)| (answered, long_ago));
    }
    assert_eq!(answer(&dropped, 8, 20), Answering::Plain, "it was taken in");
    assert_eq!(dropped.state.lock().nodes[&8].most, Some(20));
}

#[test]
fn beyond_the_limit_any_node_may_have_been_dropped() {
    let dropped = Dropped::default();
    (0..NODES_MAX as u64).for_each(|node| assert!(!shows(&dropped, node, 1)));
    let now = Instant::now();
    for (of, node) in &mut dropped.state.lock().nodes {
        // However long it takes until they are looked at.
        let at = if *of == 7 { now + Duration::from_secs(3_600) } else { now - TAKEN_IN };
        (node.answered, node.least) = (Some((1, at)), Some((1, at)));
    }
    assert_eq!(dropped.begin(1 << 40), None);
    assert_eq!(dropped.state.lock().nodes.len(), 2, "answers that were taken in make room");
    assert_eq!(dropped.begin(7), Some(1), "this one may be on its way");
    dropped.end(7);
    (0..NODES_MAX as u64).for_each(|node| dropped.end(node));
    assert!(shows(&dropped, 1 << 41, 1) && shows(&dropped, 1 << 42, 1));
    dropped.entry(1 << 43, 1);
    assert!(!dropped.state.lock().nodes.contains_key(&(1 << 43)), "an entry needs no room");
}

// SEMANTICS 114.4
#[test]
fn what_the_kernel_takes_in_whatever_it_was_answered_takes_no_size_back() {
    let size = |bytes| Size { generation: 0, bytes };
    let dropped = Arc::new(Dropped::default());
    assert_eq!(dropped.answer_at_once(7, size(20), true), Answering::Plain);
    assert!(
        dropped.begin_setting(7, size(10), false, 1).is_none(),
        "a program has learned that it is longer"
    );
    let setting = dropped.begin_setting(7, size(20), false, 1).unwrap();
    assert_eq!(dropped.answer_at_once(7, size(20), true), Answering::Plain, "it says the same");
    let asked = dropped.asks(7, 2);
    let (other, sent) = (dropped.clone(), Arc::new(AtomicBool::new(false)));
    let is_sent = sent.clone();
    let learns = std::thread::spawn(move || {
        let answering = other.answer(7, size(30), true, asked);
        assert!(is_sent.load(Ordering::SeqCst), "the kernel would take the file for shorter afterwards");
        (answering, Instant::now())
    });
    std::thread::sleep(Duration::from_millis(50));
    sent.store(true, Ordering::SeqCst);
    let before = Instant::now();
    drop(setting);
    let (answering, at) = learns.join().unwrap();
    assert!(at - before >= SET_WITHIN, "its thread may wake up later");
    let Answering::Show(drops) = answering else { panic!("it was asked before") };
    dropped.shown(7, drops);
    assert_eq!(dropped.answer_at_once(7, size(40), true), Answering::Plain, "it was asked behind it");
}

// SEMANTICS 114.4
#[test]
fn a_thread_that_asks_again_has_taken_in_what_it_was_answered() {
    let size = |bytes| Size { generation: 0, bytes };
    let dropped = Arc::new(Dropped::default());
    // However long this takes.
    let sent = |thread| {
        dropped.forget(7);
        drop(dropped.begin_setting(7, size(20), false, thread));
        let soon = Instant::now() + Duration::from_secs(3_600);
        dropped.state.lock().nodes.get_mut(&7).unwrap().set_last.as_mut().unwrap().0 = soon;
    };
    let waits = |thread| {
        let state = dropped.state.lock();
        state.nodes[&7].is_set_until(size(30), thread, Instant::now()).is_some()
    };
    sent(1);
    assert!(waits(Some(2)) && waits(Some(0)) && !waits(Some(1)));
    assert!(!waits(None), "the kernel lets nobody else truncate it meanwhile");
    assert_eq!(
        dropped.answer_at_once(7, size(20), true),
        Answering::Plain,
        "it has that size if it ignores the answer"
    );
    assert_eq!(dropped.answer(7, size(30), true, dropped.asks(7, 1)), Answering::Plain);
    sent(1);
    drop(dropped.begin_setting(7, size(20), false, 2));
    assert!(waits(Some(2)), "that of the first may still be on its way");
    sent(0);
    assert!(waits(Some(0)), "nobody knows which thread that is");
}

// SEMANTICS 114.4
#[test]
fn an_answer_that_was_asked_for_before_such_a_reply_is_shown() {
    let size = |bytes| Size { generation: 0, bytes };
    let dropped = Arc::new(Dropped::default());
    let asked = dropped.asks(7, 1);
    drop(dropped.begin_setting(7, size(20), true, 2));
    assert!(matches!(dropped.answer(7, size(30), true, asked), Answering::Show(_)));
}

// SEMANTICS 114.4
#[test]
fn a_truncation_is_answered_with_its_own_size() {
    let size = |generation, bytes| Size { generation, bytes };
    let dropped = Arc::new(Dropped::default());
    assert_eq!(dropped.answer_at_once(7, size(1, 30), true), Answering::Plain);
    drop(dropped.begin_setting(7, size(1, 20), true, 1).unwrap());
    assert_eq!(
        dropped.answer_at_once(7, size(1, 20), true),
        Answering::IsOld,
        "somebody has made it longer since"
    );
    let answering = dropped.answer_at_once(7, size(1, 30), true);
    assert!(matches!(answering, Answering::Show(_)), "the kernel takes it for as long as it was cut to");
    dropped.forget(7);
    let setting = dropped.begin_setting(7, size(2, 20), true, 1);
    dropped.forget(7);
    drop(setting);
    assert_eq!(dropped.answer_at_once(7, size(2, 20), true), Answering::Plain);
}
